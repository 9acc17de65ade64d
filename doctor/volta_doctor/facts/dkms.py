"""The `dkms` section: what DKMS has built, read from its own tree, and the installed kernels."""

import msgspec

from volta_doctor.facts.modules import installed_kernels
from volta_doctor.probe import Probe

TREE = "/var/lib/dkms"


class DkmsBuild(msgspec.Struct, frozen=True):
    """A module version built for one kernel."""

    module: str
    version: str
    kernel: str


class DkmsFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Whether DKMS is there, its NVIDIA builds, and the kernels on disk, newest first.

    `added` are the NVIDIA sources that DKMS knows (module/version), built or not.
    """

    present: bool
    added: list[str] = []
    builds: list[DkmsBuild] = []
    kernels: list[str] = []


def collect(probe: Probe) -> DkmsFacts:
    """Read DKMS's tree: <module>/<version>/<kernel>/<arch>; far quicker than `dkms status`."""
    added, builds = [], []
    for module in probe.names(TREE):
        if not module.startswith("nvidia"):
            continue
        for version in probe.names(f"{TREE}/{module}"):
            if version.startswith("kernel-") or version == "original_module":
                continue  # links to the newest build of a kernel, and saved modules
            added.append(f"{module}/{version}")
            builds += [
                DkmsBuild(module, version, kernel)
                for kernel in probe.names(f"{TREE}/{module}/{version}")
                if kernel not in ("source", "build")
            ]
    return DkmsFacts(
        present=probe.which("dkms") is not None,
        added=added,
        builds=builds,
        kernels=probe.once(installed_kernels),
    )
