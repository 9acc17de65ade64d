"""A Python environment: collect_env of torch and vLLM, lists of pip, uv and conda, one-liners.

The CUDA that a torch was built for is told by its version (+cu128), by collect_env, or by NVIDIA's
libraries in the same list; where nothing tells it, torch is one package among others.
"""

import re
from collections.abc import Iterator
from typing import Any

from volta_doctor.facts.fatbin import DeviceCode
from volta_doctor.facts.model import Facts
from volta_doctor.facts.python_envs import PythonEnv, PythonEnvsFacts
from volta_doctor.facts.python_envs.distributions import CondaPackage, Distribution
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._gpus import loaded
from volta_doctor.logs.readers._names import ENVIRONMENT, SERVER
from volta_doctor.logs.readers._packages import packages
from volta_doctor.logs.text import Line, Text

_VERSION = r"v?([12]\.\d+(?:\.\d+)?(?:\.?(?:a|b|rc|dev|post)\d+)*(?:\+[\w.]+)?)"
_TORCH = re.compile(
    r"^(?:[-*\[\]'\"\s]*)(?:PyTorch|torch)(?:\.__version__)?(?: version)?\s*(?:==|[:=]|\s)\s*['\"]?"
    rf"{_VERSION}\b",
    re.IGNORECASE,
)
_ASKED = re.compile(r"torch\.__version__")
_ALONE = re.compile(rf"(?:^|[\s('\",]){_VERSION}(?=[\s'\",)]|$)(?:.*?\b(?P<cuda>1\d\.\d)\b)?")
_TAGGED = re.compile(r"^['\"]?(\d+\.\d+\.\d+(?:\.dev\d+)?\+(?:cu\d{2,3}|cpu))['\"]?$")
_LABELS = (
    ("cuda", re.compile(r"CUDA used to build PyTorch\s*:\s*(\d+\.\d+|None|N/A)")),
    ("cuda", re.compile(r"^\W*(?:torch\.version\.cuda|(?:Py)?torch CUDA)\W+(\d+\.\d+)", re.I)),
    ("rocm", re.compile(r"ROCM used to build PyTorch\s*:\s*(\d\S*)")),
    ("python", re.compile(r"^\W*Python(?: version)?\s*[:=]?\s*(3\.\d+)(?:\.\d+)?\b", re.I)),
    ("glibc", re.compile(r"Libc version\s*:\s*glibc-(\d+\.\d+)")),
    ("driver", re.compile(r"(?:Nvidia|CUDA) driver version\s*:\s*(\d{3}\.\d[\d.]*)", re.I)),
)  # fmt: skip
_ARCHS = re.compile(
    r"\[?['\"]?((?:sm|compute)_\d{2,3}[af]?\b(?:['\", ]+(?:sm|compute)_\d{2,3}[af]?\b)+)"
)
_ARCH = re.compile(r"(sm|compute)_(\d{2,3}[af]?)")
_FLAGS = re.compile(r"NVCC architecture flags:.*")
_UNREAD = "The text does not show its device code"
# Of NVIDIA's libraries these have the numbers of the CUDA that they are from.
_OF_CUDA = re.compile(r"nvidia-(?:cuda-runtime|cuda-nvrtc|cublas)(?:-cu\d+)?|cuda-toolkit")


@reader(
    "torch", "Package", "nvidia-", "==", "Libc version", "Python version", "driver version",
    "Successfully installed", "vLLM", after=120,
)  # fmt: skip
def python_env(text: Text) -> Iterator[Part]:
    """Yield the environment of a text as one, and the driver that collect_env names."""
    seen: list[Seen] = []
    env = _Env()
    for name, value, line in _told(text):
        if name == "driver":
            modules, shown = loaded(text, value, line)
            yield Part(Facts(modules=section(modules)), ("driver-branch",), [shown])
            continue
        if env.tell(name, value):
            seen.append(Seen("python_envs", _words(name, value), text.evidence(line)))
    for line, package in packages(text):
        name, version = package.name, package.version
        env.add(package)
        words = f"{name} {version}"
        if name == "torch":
            words = f"torch {version}" if env.tell("torch", version) else ""
        elif "cudnn" in name and isinstance(package, Distribution):
            env.tell("cudnn", version)
            env.tell("cudnn_source", name)
            words = version
        seen.append(Seen("python_envs", words, text.evidence(line)))
    seen.sort(key=lambda place: place.evidence.line or 0)
    archs = list(_archs(text))
    if env.is_empty and not archs:
        return
    code = DeviceCode(
        sass={arch: 1 for kind, arch, _ in archs if kind == "sm"},
        ptx={arch: 1 for kind, arch, _ in archs if kind == "compute"},
    )
    seen += [Seen("python_envs", "sm_", text.evidence(line)) for _, _, line in archs[:1]]
    facts = PythonEnvsFacts(envs=[env.facts(code if archs else None)], searches=[])
    judges = ["torch-arch", "cu13-lib", "cudnn", "driver-cuda"]
    judges += ["python-version"] if env.told.get("python") else []
    yield Part(Facts(python_envs=section(facts)), judges, seen)


def _words(name: str, value: str) -> str:
    return {"torch": f"torch {value}", "cuda": f"CUDA {value}"}.get(name, value)


class _Env:
    """What is known of the environment; of two values the first holds."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.distributions: dict[str, Distribution] = {}
        self.conda: dict[str, CondaPackage] = {}

    def tell(self, name: str, value: str) -> bool:
        return self.told.setdefault(name, value) == value

    def add(self, package: Distribution | CondaPackage) -> None:
        if isinstance(package, Distribution):
            self.distributions.setdefault(package.name, package)
        else:
            self.conda.setdefault(package.name, package)

    @property
    def is_empty(self) -> bool:
        return not (self.told or self.distributions or self.conda)

    def facts(self, code: DeviceCode | None) -> PythonEnv:
        told, torch = self.told, self.told.get("torch", "")
        cuda = self._cuda(torch)
        known: dict[str, Any] = {}
        if torch and (
            cuda or torch.endswith("+cpu") or "rocm" in torch or told.get("cuda") == "None"
        ):
            known = {"torch": torch, "torch_cuda": cuda, "torch_problem": _UNREAD}
            known["torch_hip"] = told.get("rocm") or torch.partition("+rocm")[2] or None
        return PythonEnv(
            prefix=ENVIRONMENT,
            python=told.get("python", ""),
            tag=f"cp{told['python'].replace('.', '')}" if "python" in told else "",
            used_by=[SERVER],
            distributions=list(self.distributions.values()),
            conda=list(self.conda.values()),
            torch_code=code,
            cudnn=told.get("cudnn"),
            cudnn_source=told.get("cudnn_source", ""),
            glibc=told.get("glibc"),
            **known,
        )

    def _cuda(self, torch: str) -> str | None:
        if match := re.search(r"\+(?:[\w.]*\.)?cu(\d{2})(\d)\b", torch):
            return f"{match[1]}.{match[2]}"
        if (told := self.told.get("cuda", "")) and told[0].isdigit():
            return told
        for name, package in self.distributions.items():
            if _OF_CUDA.fullmatch(name):
                return ".".join(package.version.split(".")[:2])
        build = self.conda["pytorch"].build if "pytorch" in self.conda else ""
        found = re.search(r"cuda_?(\d+)\.?(\d)", build)
        return f"{found[1]}.{found[2]}" if found else None


def _told(text: Text) -> Iterator[tuple[str, str, Line]]:
    """Yield what labels and answers to one-liners tell."""
    asked = 0
    for line in text.lines:
        body = line.body
        if (match := _TORCH.match(body)) or (match := _TAGGED.match(body)):
            yield "torch", match[1], line
        elif asked and (match := _ALONE.search(body)):
            asked = 0
            yield "torch", match[1], line
            if match["cuda"]:
                yield "cuda", match["cuda"], line
        for name, pattern in _LABELS:
            if match := pattern.search(body):
                yield name, match[1].replace("N/A", "None"), line
        asked = 3 if _ASKED.search(body) else max(0, asked - 1)


def _archs(text: Text) -> Iterator[tuple[str, str, Line]]:
    """Yield the architectures that a torch says it was built for: the first list."""
    near = 0
    for line in text.lines:
        near = 4 if "arch_list" in line.text and "TORCH_CUDA" not in line.text else max(0, near - 1)
        flags, listed = _FLAGS.search(line.text), _ARCHS.search(line.text)
        found = re.findall(r"code=(sm|compute)_(\d+)", line.text) if flags else []
        if listed and near:
            found = _ARCH.findall(listed[1])
        if found:
            yield from ((kind, arch, line) for kind, arch in found)
            return
