"""A bundle: the lock and all that a host needs to make a release of it, in one directory.

Beside what is the same for all hosts it holds, for each class of host, CLASS.tar (what a host of
that class unpacks, with the wheel that one of them built) and CLASS.sha256, which is written last.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from volta_doctor.files import write
from volta_provision.errors import StackError
from volta_provision.lockfile import PINS, PROFILES, Lock, digest, make_lock, requirement_files
from volta_provision.source import pack, pack_source
from volta_provision.stack import Profile, Stack

BUILT = "built.txt"  # the requirement file of the wheel that a host built


def write_bundle(stack: Stack, profile: Profile, source: Path, parent: Path) -> dict[str, Any]:
    """Write stack.lock.yaml, source.tar and the requirement files to `parent`/RELEASE, atomically.

    Returns what the playbooks need to know: the lock's digest, the release's name, the lock's
    content, the order of the release's requirement files, and whether anything was written.
    """
    archive, source_digest = pack_source(source)
    lock = make_lock(stack, profile, source_digest)
    encoded = lock.encode()
    lock_digest = digest(encoded)
    release = lock_digest.removeprefix("sha256:")[:12]
    out = parent / release
    report = {
        "changed": False,
        "digest": lock_digest,
        "release": release,
        "requirements": [*requirement_files(profile), BUILT],
        "torch_index": PROFILES[profile]["torch_index"],
        "disk_gib": PROFILES[profile]["disk_gib"],
        "path": str(out),
        "lock": msgspec.to_builtins(msgspec.structs.replace(lock, packages=[], build=[])),
    }
    if out.exists():
        forget_damaged(out)
        return report
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".") as scratch:
        staged = Path(scratch) / "bundle"
        staged.mkdir(mode=0o755)
        (staged / "source.tar").write_bytes(archive)
        for name in requirement_files(profile):
            shutil.copyfile(PINS / name, staged / name)
        (staged / "stack.lock.yaml").write_bytes(encoded)
        staged.rename(out)
    return {**report, "changed": True}


def pack_release(bundle: Path, host_class: str, wheel: Path) -> Path:
    """Write what hosts of a class unpack, with the wheel that one of them built; returns the tar.

    Raises StackError where the wheel lacks code for an architecture that the lock names.
    """
    encoded = (bundle / "stack.lock.yaml").read_bytes()
    lock = msgspec.yaml.decode(encoded, type=Lock)
    audit(wheel, lock.kernels["archs"])
    data = wheel.read_bytes()
    built = f"./{wheel.name} --hash=sha256:{hashlib.sha256(data).hexdigest()}\n"
    files = {
        "stack.lock.yaml": encoded,
        f"build/{wheel.name}": data,
        f"build/{BUILT}": built.encode(),
        **{f"build/{x}": (bundle / x).read_bytes() for x in requirement_files(lock.profile)},
    }
    archive = pack((name, content, False) for name, content in files.items())
    write(bundle / f"{host_class}.tar", archive)
    write(bundle / f"{host_class}.sha256", hashlib.sha256(archive).hexdigest().encode())
    return bundle / f"{host_class}.tar"


def forget_damaged(bundle: Path) -> None:
    """Take away the sums that do not hold, so that what they stand beside is made anew."""
    for sums in bundle.glob("*.sha256"):
        archive = sums.with_suffix(".tar")
        if (
            not archive.exists()
            or sums.read_text() != hashlib.sha256(archive.read_bytes()).hexdigest()
        ):
            sums.unlink()


def audit(wheel: Path, archs: list[str]) -> None:
    """Have the doctor look for the architectures' machine code. Raises StackError with its word."""
    if not archs:
        return
    command = [
        sys.executable,
        "-m",
        "volta_doctor",
        "arch",
        "--require",
        ",".join(archs),
        str(wheel),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StackError(
            f"{wheel.name}: not every kernel has code for {', '.join(archs)}, so it is not shipped "
            f"(volta-doctor arch: exit {done.returncode})\n{done.stdout}{done.stderr}"
        )
