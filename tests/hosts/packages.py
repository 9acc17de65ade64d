"""Small packages that play those of NVIDIA's CUDA repository for Debian.

Names, relations and paths are those of the real ones; the driver's library is the fake NVML, its
module a few lines that DKMS really builds.
"""

import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

HOST = Path(__file__).parents[1] / "fakegpu/host"
FAKE_STATE = "/var/lib/fakegpu/state"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
BROKEN = "580.82.07"  # its module does not compile
VERSIONS = ("535.261.03", "580.65.06", BROKEN, "580.95.05", "590.44.01")
MAINTAINER = "Volta tests <tests@volta.invalid>"


@dataclass(frozen=True)
class Package:
    """A binary package: `files` by path are texts or files to copy, executable where under bin."""

    name: str
    version: str
    depends: str = ""
    files: dict[str, str | Path] = field(default_factory=dict)
    scripts: dict[str, str] = field(default_factory=dict)
    fields: dict[str, str] = field(default_factory=dict)

    def build(self, into: Path, scratch: Path) -> None:
        """Write NAME_VERSION_amd64.deb."""
        tree = scratch / f"{self.name}_{self.version}"
        for name, content in self.files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(content, path)
            else:
                path.write_text(content)
            path.chmod(0o755 if "/bin/" in f"/{name}" or name.endswith("volta-fake") else 0o644)
        fields = {
            "Package": self.name,
            "Version": self.version,
            "Architecture": "amd64",
            "Maintainer": MAINTAINER,
            "Description": f"{self.name} of a fake V100 host",
            **({"Depends": self.depends} if self.depends else {}),
            **self.fields,
        }
        control = tree / "DEBIAN"
        control.mkdir(parents=True)
        (control / "control").write_text("".join(f"{k}: {v}\n" for k, v in fields.items()))
        for name, text in self.scripts.items():
            (control / name).write_text(f"#!/bin/sh\nset -e\n{text}")
            (control / name).chmod(0o755)
        command = ["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", tree, into]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def kernel_module(version: str, flavour: str) -> Package:
    """nvidia-kernel-dkms or nvidia-kernel-open-dkms."""
    name = "nvidia-kernel-open-dkms" if flavour == "open" else "nvidia-kernel-dkms"
    other = "nvidia-kernel-dkms" if flavour == "open" else "nvidia-kernel-open-dkms"
    licence = "Dual MIT/GPL" if flavour == "open" else "NVIDIA"
    source = (HOST / "dkms/nvidia.c").read_text()
    source = source.replace("FAKE_LICENSE", f'"{licence}"').replace("FAKE_VERSION", f'"{version}"')
    if version == BROKEN:
        source += '#error "this kernel is too new for this driver"\n'
    modules = ("nvidia", "nvidia-uvm")
    configuration = (HOST / "dkms/dkms.conf").read_text().replace("FAKE_VERSION", version)
    place = f"usr/src/nvidia-{version}"
    return Package(
        name,
        f"{version}-1",
        depends="dkms",
        files={
            f"{place}/dkms.conf": configuration,
            f"{place}/Makefile": HOST / "dkms/Makefile",
            **{f"{place}/{module}.c": source for module in modules},
        },
        scripts={
            "postinst": f"/usr/lib/dkms/common.postinst nvidia {version} /usr/share/nvidia amd64\n",
            "prerm": f"dkms remove -m nvidia -v {version} --all || true\n",
        },
        fields={"Conflicts": other, "Provides": f"nvidia-kernel-{version}"},
    )


def container_toolkit() -> Package:
    """NVIDIA's container toolkit."""
    files = {"usr/bin/nvidia-ctk": HOST / "nvidia-ctk"}
    return Package("nvidia-container-toolkit", "1.17.8-1", files=files)


def driver(version: str, library: Path) -> list[Package]:
    """The packages of one driver version."""
    exactly = f"{version}-1"
    service = "lib/systemd/system/nvidia-persistenced.service"
    return [
        Package(
            "libnvidia-ml1",
            exactly,
            files={f"{LIBRARIES}/libnvidia-ml.so.{version}": library},
            scripts={"postinst": "ldconfig\n", "postrm": "ldconfig\n"},
        ),
        Package(
            "libcuda1",
            exactly,
            depends=f"libnvidia-ml1 (= {exactly})",
            files={f"{LIBRARIES}/libcuda.so.{version}": "no library\n"},
        ),
        Package(
            "nvidia-driver-cuda",
            exactly,
            depends=f"libcuda1 (= {exactly}), libnvidia-ml1 (= {exactly}), nvidia-modprobe,"
            f" nvidia-persistenced, nvidia-kernel-dkms (= {exactly}) |"
            f" nvidia-kernel-open-dkms (= {exactly}), python3",
            files={
                "usr/bin/nvidia-smi": HOST / "nvidia-smi",
                "usr/lib/fakegpu/fakesmi.py": HOST.parent / "fakesmi.py",
            },
        ),
        Package(
            "nvidia-modprobe", exactly, files={"usr/bin/nvidia-modprobe": HOST / "nvidia-modprobe"}
        ),
        Package(
            "nvidia-persistenced",
            exactly,
            files={
                "usr/bin/nvidia-persistenced": HOST / "nvidia-persistenced",
                service: HOST / "nvidia-persistenced.service",
            },
            scripts={
                "postinst": "systemctl daemon-reload\nsystemctl enable nvidia-persistenced\n"
                "systemctl restart nvidia-persistenced || true\n",
                "prerm": "systemctl stop nvidia-persistenced || true\n",
            },
        ),
        kernel_module(version, "proprietary"),
        kernel_module(version, "open"),
        # As the real one: "at least" this version, and so not this branch.
        Package(
            f"cuda-drivers-{version[:3]}",
            exactly,
            depends=f"nvidia-driver-cuda (>= {exactly}), nvidia-kernel-dkms (>= {exactly})",
        ),
    ]


def toolkit(version: str) -> list[Package]:
    """The CUDA toolkit: an nvcc that says its version and its targets, and writes what -o names."""
    major, minor = version.split(".")[:2]
    dashed = f"{major}-{minor}"
    place = f"usr/local/cuda-{major}.{minor}"
    first = 75 if int(major) >= 13 else 50
    archs = [arch for arch in (50, 60, 70, 75, 80, 90) if arch >= first]
    refused = "nvcc fatal : Unsupported gpu architecture 'compute_70'"
    refusal = f'case "$*" in *_70*) echo "{refused}" >&2; exit 1 ;; esac' if first > 70 else ":"
    nvcc = f"""#!/bin/sh
case "$*" in
  *--version*) echo "nvcc: NVIDIA (R) Cuda compiler driver"
    echo "Cuda compilation tools, release {major}.{minor}, V{version}" ;;
  *--list-gpu-arch*) {"; ".join(f"echo compute_{arch}" for arch in archs)} ;;
  *--list-gpu-code*) {"; ".join(f"echo sm_{arch}" for arch in archs)} ;;
  *) {refusal}
    while [ $# -gt 0 ]; do [ "$1" != -o ] || echo made > "$2"; shift; done ;;
esac
"""
    ptxas = f'#!/bin/sh\necho "Cuda compilation tools, release {major}.{minor}, V{version}"\n'
    links = {"cuda": "/usr/local/cuda", f"cuda-{major}": f"/usr/local/cuda-{major}"}
    link = "".join(
        f"update-alternatives --install {path} {name} /{place} {major}{minor}\n"
        for name, path in links.items()
    )
    parts = [
        Package(
            f"cuda-nvcc-{dashed}",
            f"{version}-1",
            files={f"{place}/bin/nvcc": nvcc, f"{place}/bin/ptxas": ptxas},
            scripts={"postinst": link},
        )
    ]
    names = [f"cuda-cudart-dev-{dashed}", f"cuda-cccl-{dashed}", f"libcublas-dev-{dashed}"]
    names += [f"cuda-cuobjdump-{dashed}", f"cuda-driver-dev-{dashed}", f"cuda-crt-{dashed}"]
    parts += [Package(name, f"{version}-1") for name in names]
    depends = ", ".join(f"{part.name} (>= {version})" for part in parts)
    return [*parts, Package(f"cuda-toolkit-{dashed}", f"{version}-1", depends=depends)]
