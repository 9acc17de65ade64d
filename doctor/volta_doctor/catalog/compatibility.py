"""The structs of compat.yaml: what goes together on Volta."""

import msgspec


class Branch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A driver branch: whether it drives Volta, and the month (YYYY-MM) in which NVIDIA ends it."""

    branch: int
    volta: bool
    source: str
    ends: str | None = None


class Driver(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Driver branches, and the last one that supports Volta."""

    last_branch: int
    flavour: str
    flavour_source: str
    branches: list[Branch]


class Toolkit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CUDA toolkits: the last version for Volta, and the nvcc versions that emit sm_70."""

    last: str
    nvcc_min: str
    nvcc_below: str
    source: str


class TorchBuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether torch wheels carry sm_70 device code.

    `versions` is a PEP 440 specifier, `cuda` lists the tags of the builds meant (cu128).
    """

    versions: str
    cuda: list[str]
    sm_70: bool
    source: str


class TorchPin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The torch that a profile installs; `version` is a PEP 440 version with its local tag."""

    version: str
    source: str


class Cudnn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cuDNN release that dropped sm_70."""

    below: str
    source: str


class Cuda13(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to tell CUDA 13 wheels whose names do not say it: these, from version 13 on."""

    names: list[str]
    exempt: list[str]
    source: str


class OtherGpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An extension without sm_70 code that a Volta card never runs.

    `file` is a glob for the end of its path; its star goes across directories.
    """

    file: str
    source: str


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one serving engine asks of its host.

    `python` is a minor version. `glibc` is the least release that its versions `glibc_for` (a
    PEP 440 specifier) run with.
    """

    python: str
    glibc: str
    glibc_for: str
    source: str


class Volta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to recognise a Volta card: NVIDIA's PCI device ids from `first` to `last` (hex)."""

    compute_capability: str
    first_device_id: str
    last_device_id: str
    names: dict[str, str]
    source: str


class Compat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The compatibility catalogue: what goes together on Volta, each edge with its source."""

    volta: Volta
    driver: Driver
    toolkit: Toolkit
    torch_builds: list[TorchBuild]
    torch_by_profile: dict[str, TorchPin]
    cudnn: Cudnn
    cuda_13: Cuda13
    other_gpus: list[OtherGpus]
    engines: dict[str, Engine]

    def torch_build(self, version: str, cuda: str) -> TorchBuild | None:
        """Return the row for a torch version (2.10.0) and CUDA version (12.8), None without one."""
        from packaging.specifiers import SpecifierSet

        tag = f"cu{cuda.replace('.', '')}"
        rows = (row for row in self.torch_builds if tag in row.cuda)
        return next((row for row in rows if SpecifierSet(row.versions).contains(version)), None)
