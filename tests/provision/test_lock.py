"""The lock is exact, reproducible, and changes when anything that a release is made of does."""

import re
import shutil

import pytest
import yaml

from volta_doctor.catalog import compat
from volta_provision import lockfile
from volta_provision.bundle import write_bundle
from volta_provision.errors import StackError
from volta_provision.lockfile import PROFILES, digest, make_lock, read_pins
from volta_provision.source import PARTS, pack_source
from volta_provision.stack import Serve, Stack

STACK = Stack(model="smollm2-135m-instruct-nvfp4")


@pytest.fixture
def source(tmp_path, repo):
    """A small tree with the parts that a checkout has."""
    root = tmp_path / "source"
    root.mkdir()
    for part in PARTS:
        if (repo / part).is_dir():
            (root / part).mkdir()
            (root / part / "code.txt").write_text(part)
        else:
            shutil.copy(repo / part, root / part)
    return root


@pytest.mark.parametrize("profile", PROFILES)
def test_every_package_is_pinned_with_hashes(profile):
    lock = yaml.safe_load(make_lock(STACK, profile, "sha256:0").encode())
    assert lock["schema"] == 1
    for package in lock["packages"] + lock["build"]:
        assert re.fullmatch(r"[0-9][\w.+!-]*", package["version"])
        assert all(re.fullmatch(r"[0-9a-f]{64}", hash_) for hash_ in package["sha256"])


def test_one_torch_per_profile():
    torch = {
        profile: [p.version for p in make_lock(STACK, profile, "").packages if p.name == "torch"]
        for profile in PROFILES
    }
    assert torch == {name: [row.version] for name, row in compat().torch_by_profile.items()}


def test_the_cpu_profile_brings_no_cuda():
    names = {package.name for package in make_lock(STACK, "cpu", "").packages}
    assert not {name for name in names if name.startswith("nvidia-") and name != "nvidia-ml-py"}
    assert "triton" not in names


def test_v100_packages_are_of_cuda_12():
    names = {package.name for package in make_lock(STACK, "v100", "").packages}
    assert "nvidia-cublas-cu12" in names
    assert not {name for name in names if name.endswith("-cu13")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("numpy==2.0.0\n", "numpy: needs one == pin and its sha256"),
        ("numpy>=2 --hash=sha256:" + "0" * 64 + "\n", "numpy: needs one == pin"),
    ],
)
def test_a_line_without_pin_or_hash_is_refused(tmp_path, monkeypatch, line, message):
    (tmp_path / "bad.txt").write_text(line)
    monkeypatch.setattr(lockfile, "PINS", tmp_path)
    with pytest.raises(StackError, match=message):
        read_pins("bad.txt")


def test_equal_sources_give_equal_locks_and_other_ones_do_not(source):
    first = pack_source(source)[1]
    (source / "runtime/__pycache__").mkdir()
    (source / "runtime/__pycache__/code.pyc").write_bytes(b"x")
    assert pack_source(source)[1] == first
    (source / "runtime/code.txt").write_text("changed")
    assert pack_source(source)[1] != first


def test_settings_are_part_of_the_lock():
    other = Stack(model=STACK.model, serve=Serve(port=8001))
    assert digest(make_lock(STACK, "cpu", "").encode()) != digest(
        make_lock(other, "cpu", "").encode()
    )


def test_a_bundle_is_written_once(source, tmp_path):
    parent = tmp_path / "bundles"
    first = write_bundle(STACK, "cpu", source, parent)
    assert first["changed"]
    out = parent / first["release"]
    assert first["digest"] == digest((out / "stack.lock.yaml").read_bytes())
    assert {path.name for path in out.iterdir()} >= {"source.tar", "build.txt", "cpu.txt"}
    second = write_bundle(STACK, "cpu", source, parent)
    assert second == {**first, "changed": False}
    (source / "csrc/code.txt").write_text("changed")
    third = write_bundle(STACK, "cpu", source, parent)
    assert third["changed"]
    assert {path.name for path in parent.iterdir()} == {first["release"], third["release"]}
