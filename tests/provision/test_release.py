"""What volta_release says of made-up trees, and what it leaves of them, also when it is killed."""

import contextlib
import hashlib
import io
import os
import tarfile
from pathlib import Path
from unittest import mock

import pytest
from ansible_modules import load

release = load("volta_release")


class KilledError(Exception):
    """The process ends here."""


@pytest.fixture
def root(tmp_path):
    """Complete releases a, b, c, d, the oldest first, and the remains of one."""
    for made, name in enumerate("abcd"):
        manifest = tmp_path / "releases" / name / "release.json"
        manifest.parent.mkdir(parents=True)
        manifest.touch()
        os.utime(manifest, (made, made))
    (tmp_path / "releases/half/venv").mkdir(parents=True)
    return tmp_path


def call(root, state, name="", serves=(), **more):
    """Run the module's work; returns what there was to do."""
    params = {"root": str(root), "state": state, "release": name, "keep": 3, **more}
    work = release.plan(params, release.look(root), list(serves))
    release.perform(work, params)
    return work


@contextlib.contextmanager
def killed_at(step):
    """Let the process die before its rename or removal number `step`; yields whether it did."""
    steps = iter(range(100))
    died = []

    def dying(call):
        def run(*arguments, **keywords):
            if next(steps) == step:
                died.append(True)
                raise KilledError
            return call(*arguments, **keywords)

        return run

    with (
        mock.patch.object(Path, "replace", dying(Path.replace)),
        mock.patch.object(Path, "unlink", dying(Path.unlink)),
        mock.patch.object(release.shutil, "rmtree", dying(release.shutil.rmtree)),
        contextlib.suppress(KilledError),
    ):
        yield died


def test_releases_are_complete_in_order_or_remains(root):
    assert release.look(root) == (["a", "b", "c", "d"], ["half"], "", "")


def test_going_back_follows_what_was_linked_not_what_was_made(root):
    for name in "bda":
        assert call(root, "current", name).link == name
    assert release.look(root)[2:] == ("a", "d")
    assert not call(root, "current", "a").link
    assert call(root, "rolled_back", "a").link == "d"
    assert not call(root, "rolled_back", "a").link  # a is not linked any more: done already
    assert release.look(root)[2:] == ("d", "b")
    call(root, "current", "c")
    assert release.look(root)[2:] == ("c", "d")  # a was left by going back


def test_what_is_not_complete_is_not_linked(root):
    with pytest.raises(release.ReleaseError, match=r"half is not complete .* here: a, b, c, d"):
        call(root, "current", "half")
    with pytest.raises(release.ReleaseError, match=r"not the name of a directory"):
        call(root, "current", "../a")


def test_the_first_release_has_none_before_it(root):
    call(root, "current", "a")
    with pytest.raises(release.ReleaseError, match=r"no release to go back to.*before a"):
        call(root, "rolled_back")


def test_pruning_keeps_three_and_what_is_needed(root):
    call(root, "current", "a")
    call(root, "current", "b")
    assert call(root, "pruned").remove == ("half", "c")
    assert release.look(root) == (["a", "b", "d"], [], "b", "a")
    assert not call(root, "pruned").remove
    assert call(root, "pruned", keep=1, serves=["d"]).remove == ()
    assert call(root, "pruned", keep=1).remove == ("d",)


@pytest.mark.parametrize("step", range(3))
def test_a_switch_that_is_killed_leaves_a_served_release_and_a_way_back(root, step):
    call(root, "current", "a")
    call(root, "current", "b")
    with killed_at(step) as died:
        call(root, "current", "c")
    seen = release.look(root)
    assert (seen.current, seen.before) == (("b", "a") if died else ("c", "b"))
    assert bool(died) == (step < 2)
    call(root, "current", "c")
    assert release.look(root)[2:] == ("c", "b")


@pytest.mark.parametrize("step", range(4))
def test_a_release_that_is_removed_in_part_is_not_complete(root, step):
    call(root, "current", "d")
    with killed_at(step):
        call(root, "pruned", keep=1)
    for name in release.look(root).releases:
        assert (root / "releases" / name / "release.json").exists()
    call(root, "pruned", keep=1)
    assert release.look(root) == (["d"], [], "d", "")


def archive(path, **files):
    with tarfile.open(path, "w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size, info.mode = len(text), 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    return {"archive": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize("step", range(4))
def test_an_archive_takes_the_place_of_remains_whole(root, tmp_path, step):
    more = archive(tmp_path / "half.tar", lock="x", build__wheel="y")
    with killed_at(step) as died:
        call(root, "unpacked", "half", **more)
    half = root / "releases/half"
    assert not died or not (half / "lock").exists()
    assert call(root, "unpacked", "half", **more).unpack == "half"
    assert sorted(x.name for x in half.iterdir()) == ["build", "lock"]
    assert (half / "build/wheel").read_text() == "y"
    assert not call(root, "unpacked", "a", **more).unpack  # complete


def test_a_damaged_archive_and_one_that_leads_out_are_refused(root, tmp_path):
    more = archive(tmp_path / "bad.tar", lock="x", **{"..__evil": "y"})
    with pytest.raises(release.ReleaseError, match=r"\.\./evil is no plain file"):
        call(root, "unpacked", "half", **more)
    with pytest.raises(release.ReleaseError, match=r"sha256 is [0-9a-f]{64}, not 00"):
        call(root, "unpacked", "half", **{**more, "sha256": "00"})
    assert not (tmp_path / "releases/evil").exists()
    assert (root / "releases/half/venv").exists()


def process(proc, pid, *words):
    (proc / str(pid)).mkdir(parents=True)
    (proc / str(pid) / "cmdline").write_bytes(b"".join(word.encode() + b"\0" for word in words))


def test_what_makes_and_what_serves_are_told_apart(tmp_path):
    proc, root = tmp_path / "proc", Path("/opt/volta")
    old, new = f"{root}/releases/old/venv/bin", f"{root}/releases/new/venv/bin"
    process(
        proc,
        10,
        f"{old}/python3",
        f"{root}/current/venv/bin/volta-serve",
        "serve",
        "--api-key-file",
        "x",
    )
    process(proc, 11, f"{old}/python3", f"{root}/current/venv/bin/volta-doctor", "check")
    process(proc, 12, "/bin/sh", "-c", f"ls {root}/releases/new")
    assert release.makers(root, proc) == []
    assert release.serving(root, proc) == ["old"]
    process(proc, 13, f"{new}/python3", f"{new}/pip", "install")
    process(proc, 14, f"{new}/python3", f"{new}/volta-serve", "convert", f"{root}/download/x", "y")
    process(proc, 15, "tail", "-f", f"{new}/pip.log")
    assert [line.split(" (")[0] for line in release.makers(root, proc)] == ["pid 13", "pid 14"]
    assert release.serving(root, proc) == ["old"]
