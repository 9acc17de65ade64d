"""Whole hosts with fake V100s, each with a Python environment that is right but for one thing."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import volta_doctor

VENV = "srv/venv"
SITE = f"{VENV}/lib/python3.11/site-packages"


@pytest.fixture(scope="session")
def fakegpu() -> ModuleType:
    import fakegpu

    return fakegpu


@pytest.fixture(scope="session")
def library(fakegpu: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libnvidia-ml.so.1."""
    built: Path = fakegpu.build(tmp_path_factory.mktemp("library"))
    return built


@dataclass
class MadeHost:
    """A host in a directory, on which the doctor's command line runs."""

    root: Path
    env: dict[str, str]

    def put(self, files: Mapping[str, str | bytes | None]) -> None:
        """Write files of the host; None takes one away, `-> x` makes a link."""
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            if isinstance(content, str) and content.startswith("-> "):
                path.symlink_to(content[3:])
            elif content is not None:
                path.write_bytes(content.encode() if isinstance(content, str) else content)

    def arch(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run `volta-doctor arch`."""
        return subprocess.run(
            [sys.executable, "-m", "volta_doctor", "arch", *args],
            env=self.env,
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )

    def report(self, *args: str) -> dict[str, Any]:
        """What it says, as JSON."""
        done = self.arch("--format", "json", *args)
        assert done.stderr == ""
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["exit_code"] == done.returncode
        return found


def dist_info(name: str, version: str, *requires: str, tag: str = "py3-none-any") -> dict[str, str]:
    """What pip leaves of a package."""
    place = f"{SITE}/{name.replace('-', '_')}-{version}.dist-info"
    lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {r}" for r in requires)]
    return {
        f"{place}/METADATA": "Metadata-Version: 2.1\n" + "\n".join(lines) + "\n\n",
        f"{place}/WHEEL": f"Wheel-Version: 1.0\nTag: {tag}\n",
    }


@pytest.fixture(scope="session")
def shared_object(
    elf_file: Callable[..., bytes], fat_binary: Callable[..., bytes]
) -> Callable[..., bytes]:
    """shared_object(sass=[70], ptx=[70], isa="8.7", needs=["libtorch.so"])"""

    def make(
        sass: Sequence[int] = (),
        ptx: Sequence[int] = (),
        isa: str = "8.7",
        needs: Sequence[str] = (),
    ) -> bytes:
        code = bytearray()
        for kind, archs in ((2, sass), (1, ptx)):
            for arch in archs:
                region = bytearray(fat_binary((kind, arch)))
                major, minor = map(int, isa.split("."))
                struct.pack_into("<HH", region, 16 + 24, minor, major)
                code += region
        sections = {".nv_fatbin": bytes(code)} if code else {}
        return elf_file(sections, needed=needs)

    return make


@pytest.fixture
def made_host(
    fakegpu: ModuleType,
    library: Path,
    tmp_path: Path,
    shared_object: Callable[..., bytes],
) -> Callable[..., MadeHost]:
    """made_host(snapshot, driver=..., files={...}): two V100s, torch 2.10.0 and an extension."""

    def make(
        snapshot: str = "v100-sxm2-32gb-x2",
        driver: str | None = None,
        files: Mapping[str, str | bytes | None] = {},
    ) -> MadeHost:
        fake = fakegpu.load(snapshot)
        if driver:
            versions = {"driver_version": driver, "nvml_version": f"12.{driver}"}
            fake = replace(fake, nvml=fake.nvml | versions)
        env = fakegpu.host_environment(tmp_path, fake, library)
        kept = {"PATH": "/usr/bin:/bin", "HOME": "/root", "COLUMNS": "80"}
        kept["VOLTA_ROOT"] = "/opt/volta"
        kept["PYTHONPATH"] = str(Path(volta_doctor.__file__).parents[1])
        names = ("LD_LIBRARY_PATH", "VOLTA_FAKE_NVML", "VOLTA_DOCTOR_SYSROOT")
        host = MadeHost(tmp_path / "root", kept | {name: env[name] for name in names})
        volta = shared_object([70, 80], needs=["libcudart.so.12", "libtorch_cuda.so"])
        torch = ("nvidia-nccl-cu12==2.27.5", "nvidia-cudnn-cu12==9.10.2.21")
        host.put(
            {
                f"{VENV}/pyvenv.cfg": "home = /usr/bin\nversion = 3.11.2\n",
                f"{VENV}/bin/python": "-> /usr/bin/python3.11",
                f"{SITE}/torch/version.py": "__version__ = '2.10.0+cu128'\ncuda = '12.8'\n",
                f"{SITE}/torch/lib/libtorch_cuda.so": shared_object([70, 75, 80, 90]),
                f"{SITE}/exllama/ext.cpython-311-x86_64-linux-gnu.so": volta,
                **dist_info("torch", "2.10.0", *torch),
                **dist_info("nvidia-nccl-cu12", "2.27.5"),
                **dist_info("nvidia-cudnn-cu12", "9.10.2.21"),
                **dist_info("exllama", "0.3.2", "torch>=2.2.0"),
                f"{SITE}/exllama-0.3.2.dist-info/RECORD": (
                    "exllama/ext.cpython-311-x86_64-linux-gnu.so,sha256=x,1\n"
                ),
                **files,
            }
        )
        return host

    return make


@pytest.fixture(scope="session")
def package() -> Callable[..., dict[str, str]]:
    """package(name, version, *requirements, tag=...): the files that pip leaves of it."""
    return dist_info
