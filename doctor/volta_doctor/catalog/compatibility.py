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


class NewestGcc(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest GCC that an nvcc takes: its major version, by a PEP 440 specifier of CUDA's."""

    cuda: str
    gcc: int


class NewestGccs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each release of nvcc takes as its host compiler."""

    rows: list[NewestGcc]
    source: str


class BuildJobs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule of thumb: memory of one job of a build, and ninja's jobs beyond the CPUs."""

    bytes: int
    over_cpus: int
    source: str


class Toolkit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """CUDA toolkits: the last version for Volta, and the nvcc versions that emit sm_70."""

    last: str
    nvcc_min: str
    nvcc_below: str
    source: str
    newest_gcc: NewestGccs
    build_jobs: BuildJobs

    def gcc_for(self, cuda: str) -> int | None:
        """Return the newest GCC for a CUDA release (12.4), None where that is not known."""
        from packaging.specifiers import SpecifierSet

        rows = (row for row in self.newest_gcc.rows if SpecifierSet(row.cuda).contains(cuda))
        return next((row.gcc for row in rows), None)


class CudaRelease(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A CUDA release, the PTX ISA of its nvcc, and the first driver branch that reads that."""

    cuda: str
    ptx: str
    driver: int


class CudaReleases(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The releases that brought a PTX ISA version, oldest first."""

    source: str
    rows: list[CudaRelease]


class CudaMajors(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The least driver branch for the runtime of each CUDA major version."""

    source: str
    least_driver: dict[int, int]


class Gpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Compute capabilities by words of cards' names, in small letters."""

    source: str
    capabilities: dict[str, str]

    def capability(self, words: str) -> str | None:
        """Return that of the longest name among words in small letters; None without any."""
        like = [name for name in self.capabilities if f" {name} " in f" {words} "]
        return self.capabilities[max(like, key=len)] if like else None


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


class NvidiaLibraries(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Globs for NVIDIA's own libraries, up to the first dot of their names.

    `stubs` are the architectures of which one alone is the stub of a library without kernels.
    """

    source: str
    stubs: list[str]
    names: list[str]


class OtherGpus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An extension without sm_70 code that a Volta card never runs.

    `file` is a glob for the end of its path; its star goes across directories.
    """

    file: str
    source: str


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of card, as its data sheet has it: GB are 10^9 bytes, MiB 2^20.

    `device_ids` are NVIDIA's of PCI. `nvlink_gbs` and `pcie_gbs` are bytes a second in one
    direction, of all NVLinks together and of the slot; a card without NVLink has 0.
    """

    title: str
    device_ids: list[str]
    memory_mib: int
    cuda_mib: int
    bandwidth_gbs: float
    tensor_tflops: float
    source: str
    nvlink_gbs: float = 0
    pcie_gbs: float = 15.75  # generation 3, 16 lanes, 128b/130b

    @property
    def memory(self) -> int:
        """Bytes in all, as NVML tells."""
        return self.memory_mib * 2**20

    @property
    def cuda_memory(self) -> int:
        """Bytes in all, as CUDA tells."""
        return self.cuda_mib * 2**20


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
    cuda_releases: CudaReleases
    cuda_majors: CudaMajors
    gpus: Gpus
    torch_builds: list[TorchBuild]
    torch_by_profile: dict[str, TorchPin]
    cudnn: Cudnn
    cuda_13: Cuda13
    nvidia_libraries: NvidiaLibraries
    other_gpus: list[OtherGpus]
    cards: dict[str, Card]

    @property
    def torch(self) -> str:
        """The version of the torch that Volta's profile installs."""
        return self.torch_by_profile["v100"].version

    def card(self, device_id: str) -> str | None:
        """Return the row of `cards` with a PCI device id (1db1), None for a card not known."""
        asked = device_id.lower()
        return next((name for name, row in self.cards.items() if asked in row.device_ids), None)

    def torch_build(self, version: str, cuda: str) -> TorchBuild | None:
        """Return the row for a torch version (2.10.0) and CUDA version (12.8), None without one."""
        from packaging.specifiers import SpecifierSet

        tag = f"cu{cuda.replace('.', '')}"
        rows = (row for row in self.torch_builds if tag in row.cuda)
        return next((row for row in rows if SpecifierSet(row.versions).contains(version)), None)

    def is_nvidias(self, path: str) -> bool:
        """Say whether a file, or the archive that it is a member of, is a library of NVIDIA's."""
        from fnmatch import fnmatchcase

        stem = path.partition(".a!")[0].rsplit("/", 1)[-1].split(".", 1)[0]
        return any(fnmatchcase(stem, glob) for glob in self.nvidia_libraries.names)

    def reads_ptx(self, isa: str) -> CudaRelease | None:
        """Return the first release that reads a PTX ISA version (8.7), None for one not known.

        What is older than the table every driver reads that drives Volta.
        """
        asked = _numbers(isa)
        rows = (row for row in self.cuda_releases.rows if _numbers(row.ptx) >= asked)
        return next(rows, None) if asked else None


def _numbers(version: str) -> list[int]:
    parts = version.split(".")
    return [int(part) for part in parts] if all(part.isdigit() for part in parts) else []
