"""The lock is exact, reproducible, and changes when anything that a release is made of does."""

import hashlib
import re
import shutil
import tarfile
import zipfile

import pytest
import yaml

from volta_doctor.catalog import compat
from volta_provision import lockfile
from volta_provision.bundle import pack_release, write_bundle
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
    assert {path.name for path in out.iterdir()} >= {"source.tar", "cpu.txt", "torch-cpu.txt"}
    second = write_bundle(STACK, "cpu", source, parent)
    assert second == {**first, "changed": False}
    (source / "csrc/code.txt").write_text("changed")
    third = write_bundle(STACK, "cpu", source, parent)
    assert third["changed"]
    assert {path.name for path in parent.iterdir()} == {first["release"], third["release"]}


@pytest.fixture
def wheel(tmp_path):
    """Return a function that makes a wheel with the given files in it."""

    def make(*files):
        path = tmp_path / "volta_stack-0.1.0-cp311-cp311-linux_x86_64.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("volta_runtime/__init__.py", "")
            for file in files:
                archive.write(file, f"volta_runtime/{file.name}")
        return path

    return make


def test_what_hosts_unpack_holds_the_wheel_with_its_hash(source, tmp_path, wheel):
    report = write_bundle(STACK, "cpu", source, tmp_path / "bundles")
    bundle = tmp_path / "bundles" / report["release"]
    built = wheel()
    archive = pack_release(bundle, "debian-12-x86_64-cp311", built)
    sums = (bundle / "debian-12-x86_64-cp311.sha256").read_text()
    assert sums == hashlib.sha256(archive.read_bytes()).hexdigest()
    with tarfile.open(archive) as tar:
        assert {f"build/{name}" for name in report["requirements"]} < set(tar.getnames())
        line = tar.extractfile("build/built.txt").read().decode()
        assert (
            tar.extractfile("stack.lock.yaml").read() == (bundle / "stack.lock.yaml").read_bytes()
        )
    write_bundle(STACK, "cpu", source, tmp_path / "bundles")
    assert (bundle / "debian-12-x86_64-cp311.sha256").exists()
    archive.write_bytes(archive.read_bytes()[:-1])  # it is made anew
    write_bundle(STACK, "cpu", source, tmp_path / "bundles")
    assert not (bundle / "debian-12-x86_64-cp311.sha256").exists()
    digest = hashlib.sha256(built.read_bytes()).hexdigest()
    assert line == f"./{built.name} --hash=sha256:{digest}\n"


@pytest.mark.parametrize(
    ("kernels", "shipped"),
    [(["cuda-11.8-sm_70.cubin"], True), (["cuda-13.0-sm_90a.cubin"], False), ([], False)],
)
def test_only_a_wheel_with_sm_70_code_is_shipped_to_v100s(
    source, tmp_path, wheel, repo, kernels, shipped
):
    report = write_bundle(STACK, "v100", source, tmp_path / "bundles")
    bundle = tmp_path / "bundles" / report["release"]
    built = wheel(*(repo / "tests/data/doctor/device_code" / name for name in kernels))
    if shipped:
        assert pack_release(bundle, "rocky-9.4-x86_64-cp311", built).exists()
        return
    with pytest.raises(StackError, match=r"not every kernel has code for sm_70, so it is not ship"):
        pack_release(bundle, "rocky-9.4-x86_64-cp311", built)
    assert not list(bundle.glob("rocky*"))
