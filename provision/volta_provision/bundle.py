"""A bundle: the lock and all that a host needs to make a release of it, in one directory."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from volta_provision.lockfile import PINS, PROFILES, digest, make_lock, requirement_files
from volta_provision.source import pack_source
from volta_provision.stack import Profile, Stack


def write_bundle(stack: Stack, profile: Profile, source: Path, parent: Path) -> dict[str, Any]:
    """Write stack.lock.yaml, source.tar and the requirement files to `parent`/RELEASE, atomically.

    Returns what the playbooks need to know: the lock's digest, the release's name, the lock's
    content, the order of the requirement files, and whether anything was written.
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
        "requirements": requirement_files(profile),
        "torch_index": PROFILES[profile]["torch_index"],
        "disk_gib": PROFILES[profile]["disk_gib"],
        "path": str(out),
        "lock": msgspec.to_builtins(msgspec.structs.replace(lock, packages=[], build=[])),
    }
    if out.exists():
        return report
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=".") as scratch:
        staged = Path(scratch) / "bundle"
        staged.mkdir(mode=0o755)
        (staged / "source.tar").write_bytes(archive)
        for name in ["build.txt", *requirement_files(profile)]:
            shutil.copyfile(PINS / name, staged / name)
        (staged / "stack.lock.yaml").write_bytes(encoded)
        staged.rename(out)
    return {**report, "changed": True}
