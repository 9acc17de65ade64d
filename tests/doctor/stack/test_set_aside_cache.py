"""What is set aside is what was meant, whatever has been laid in its way since."""

import contextlib
import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from volta_doctor.apply import needs_root, run
from volta_doctor.aside import Refused, aside_name, put_back, set_aside
from volta_doctor.findings import Step
from volta_doctor.journal import StepFailed


@pytest.fixture
def cache(tmp_path):
    """A cache with one extension, beside a directory that must stay as it is."""
    root = tmp_path / "torch_extensions"
    gates = root / "py311_cu128/gates"
    gates.mkdir(parents=True)
    (gates / "gates.so").write_text("code")
    (gates / "build.ninja").write_text("plan")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "keep").write_text("keep")
    return root


@pytest.fixture
def gates(cache):
    return cache / "py311_cu128/gates"


def ino(path):
    return path.stat(follow_symlinks=False).st_ino


def tree(top):
    return sorted(str(path.relative_to(top)) for path in top.rglob("*"))


def refused(path, within, inode, says):
    before = tree(within.parent)
    with pytest.raises(Refused, match=says):
        set_aside(str(path), str(within), inode)
    assert tree(within.parent) == before


def test_it_comes_back_as_it_was(cache, gates):
    before, inode = tree(cache), ino(gates)
    new = Path(set_aside(str(gates), str(cache), inode))
    assert new == gates.with_name(f"gates.stale-{inode}")
    assert (new / "gates.so").read_text() == "code"
    assert not gates.exists()
    put_back(str(gates), str(cache), inode)
    assert tree(cache) == before


def test_a_lock_and_a_whole_tag_and_odd_names(cache, gates):
    (gates / "lock").touch()
    odd = cache / "with space\nand newline"
    odd.mkdir()
    for path in (gates / "lock", gates.parent, odd):
        inode = ino(path)
        set_aside(str(path), str(cache), inode)
        assert not path.exists()
        put_back(str(path), str(cache), inode)
        assert path.exists()


def test_a_hard_link_is_renamed_and_its_file_stays(cache, gates, tmp_path):
    (gates / "lock").hardlink_to(tmp_path / "precious/keep")
    set_aside(str(gates / "lock"), str(cache), ino(gates / "lock"))
    assert (tmp_path / "precious/keep").read_text() == "keep"


@pytest.mark.parametrize(
    "below",
    ["", "/", "/.", "/..", "/../precious", "/py311_cu128/../../precious", "//py311_cu128", "x/y"],
)
def test_only_what_is_below_the_cache(cache, tmp_path, below):
    inode = ino(tmp_path / "precious")
    refused(f"{cache}{below}", cache, inode, "is not below the cache")


def test_the_root_is_no_cache(tmp_path):
    for within in ("/", "", "relative"):
        with pytest.raises(Refused, match="is not below the cache"):
            set_aside(str(tmp_path), within, ino(tmp_path))


def test_another_directory_in_its_place(cache, gates):
    inode = ino(gates)
    gates.rename(gates.with_name("kept"))
    gates.mkdir()
    refused(gates, cache, inode, "is another than it was")
    gates.rmdir()
    refused(gates, cache, inode, "is not there any more")


def test_a_link_in_its_place(cache, gates, tmp_path):
    gates.rename(gates.with_name("kept"))
    gates.symlink_to(tmp_path / "precious")
    refused(gates, cache, ino(tmp_path / "precious"), "is another than it was")
    refused(gates, cache, ino(gates), "neither a directory nor a file")


def test_a_link_on_the_way(cache, tmp_path):
    (cache / "py312_cu128").symlink_to(tmp_path / "precious")
    before = tree(tmp_path)
    path = cache / "py312_cu128/keep"
    with pytest.raises(OSError) as error:
        set_aside(str(path), str(cache), ino(tmp_path / "precious/keep"))
    assert error.value.errno in (errno.ENOTDIR, errno.ELOOP)
    assert tree(tmp_path) == before


def test_own_links_to_the_cache_are_followed(cache, gates, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/link").symlink_to("../torch_extensions")
    within = tmp_path / "deep/link"
    set_aside(f"{within}/py311_cu128/gates", str(within), ino(gates))
    assert not gates.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_no_link_of_another_user_is_followed(cache, gates, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(cache)
    os.chown(link, 1234, 1234, follow_symlinks=False)
    before = tree(cache)
    with pytest.raises(Refused, match="through link, a link of user 1234"):
        set_aside(f"{link}/py311_cu128/gates", str(link), ino(gates))
    assert tree(cache) == before


def test_a_link_below_proc_is_not_followed(cache, gates):
    within = f"/proc/{os.getpid()}/root{cache}"
    with pytest.raises(Refused, match="a link that is not followed"):
        set_aside(f"{within}/py311_cu128/gates", within, ino(gates))
    assert gates.exists()


def test_links_that_lead_in_a_circle(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(Refused, match="a link that is not followed"):
        set_aside(f"{tmp_path}/a/x", f"{tmp_path}/a", 1)


def test_what_lies_there_already_is_kept(cache, gates):
    inode = ino(gates)
    taken = gates.with_name(aside_name("gates", inode))
    taken.mkdir()
    refused(gates, cache, inode, "already")
    taken.rmdir()
    set_aside(str(gates), str(cache), inode)
    gates.mkdir()  # built anew
    with pytest.raises(Refused, match="there is a gates already"):
        put_back(str(gates), str(cache), inode)
    assert tree(gates) == []


@pytest.mark.parametrize("how", ["cwd", "open", "mapped"])
def test_what_a_process_uses_stays(cache, gates, how):
    script = {
        "cwd": "import os; os.chdir(p)",
        "open": "f = open(p + '/gates.so')",
        "mapped": "import mmap; f = open(p + '/gates.so'); m = mmap.mmap(f.fileno(), 0,"
        " prot=mmap.PROT_READ); f.close()",
    }[how]
    code = f"import sys; p = sys.argv[1]; {script}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(gates)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdout.readline()
        refused(gates, cache, ino(gates), rf"in use by python\S* \(pid {process.pid}\)")
        process.stdin.close()
    set_aside(str(gates), str(cache), ino(gates))


def test_a_swap_in_the_very_moment_takes_nothing_else(cache, gates, tmp_path):
    """Another swaps the directory for one that holds a link, as fast as it can."""
    bait, stop = gates.with_name("bait"), threading.Event()
    bait.mkdir()
    (bait / "link").symlink_to(tmp_path / "precious")
    inode, kept = ino(gates), gates.with_name("kept")
    there = {ino(path) for path in gates.parent.iterdir()}

    def swap():
        while not stop.is_set():
            for old, new in ((gates, kept), (bait, gates), (gates, bait), (kept, gates)):
                with contextlib.suppress(OSError):
                    old.rename(new)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(200):
            with contextlib.suppress(Refused, OSError):
                set_aside(str(gates), str(cache), inode)
                break
    finally:
        stop.set()
        thread.join()
    assert tree(tmp_path / "precious") == ["keep"]
    assert {ino(path) for path in gates.parent.iterdir()} == there


def test_as_a_step_of_a_fix(cache, gates):
    inode = ino(gates)
    words = ["volta-doctor", "set-aside", f"--within={cache}", f"--inode={inode}"]
    step = Step(run=[*words, str(gates)], undo=[*words, "--back", str(gates)])
    assert not needs_root(step)
    run(step.run)
    assert not gates.exists()
    with pytest.raises(StepFailed, match=r"nothing done: .*is not there any more"):
        run(step.run)
    run(step.undo)
    assert gates.exists()
