"""A wheel as the environment that it would make: its metadata, and its torch if it holds one."""

import re

from packaging.requirements import InvalidRequirement, Requirement

from volta_doctor.arch import wheel
from volta_doctor.arch.model import CodeFile, Scan
from volta_doctor.arch.streams import Deadline
from volta_doctor.facts.elf import NotRead
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.facts.python_envs.distributions import Distribution, parse_metadata
from volta_doctor.facts.python_envs.torch_build import TorchBuild, find_cudnn, parse_torch
from volta_doctor.probe import CannotLook, Probe

_WANTED = re.compile(r"[^/]+\.dist-info/(?:METADATA|WHEEL)|torch/version\.py")
_PATIENCE_S = 5.0
_TEXT_BYTES = 1 << 20  # of METADATA, WHEEL and version.py
_LIBRARY = re.compile(r"!torch/lib/libtorch_cuda(?:_cu|_cpp)?\.so$")


def wheel_env(probe: Probe, scan: Scan) -> PythonEnv:
    """Return what installing a wheel would give; what stands in the way is its `problem`.

    The packages that it pins count as installed: pip brings them along.
    """
    try:
        texts = _texts(probe, scan.target)
    except (CannotLook, NotRead) as reason:
        text = f"{scan.target}: {reason}"
        return PythonEnv(prefix=scan.target, used_by=[], distributions=[], problem=text)
    own = parse_metadata(texts.get("METADATA", ""), None, texts.get("WHEEL", ""))
    distributions = [own, *_pinned(own)]
    torch, cuda = parse_torch(texts.get("version.py", ""))
    library = next((file for file in scan.files if _LIBRARY.search(file.path) and file.code), None)
    cudnn = find_cudnn(probe, distributions, [], TorchBuild())
    tag = own.tags[0].split("-")[0] if own.tags else ""
    return PythonEnv(
        prefix=scan.target,
        kind="wheel",
        python=re.sub(r"^cp(\d)(\d+)$", r"\1.\2", tag),
        tag=tag,
        used_by=[],
        distributions=distributions,
        torch=torch,
        torch_cuda=cuda,
        torch_library=library.path if library else "",
        torch_code=library.code if library else None,
        torch_problem=_problem(library, cuda),
        cudnn=cudnn.version if cudnn else None,
        cudnn_source=cudnn.source if cudnn else "",
    )


def _problem(library: CodeFile | None, cuda: str | None) -> str:
    if library is None:
        return "It holds no libtorch_cuda.so with device code" if cuda else ""
    return f"{library.path}: {library.problem}" if library.problem else ""


def _texts(probe: Probe, path: str) -> dict[str, str]:
    """Return the wheel's own METADATA and WHEEL, and its torch's version.py."""
    found: dict[str, str] = {}
    with probe.open(path) as file:
        for member in wheel.members(file, Deadline(_PATIENCE_S), _is_wanted, lambda _: None):
            text = member.content.read(min(member.size, _TEXT_BYTES)).decode(errors="replace")
            found.setdefault(member.name.rsplit("/", 1)[-1], text)
    return found


def _is_wanted(name: str) -> bool:
    return _WANTED.fullmatch(name) is not None


def _pinned(own: Distribution) -> list[Distribution]:
    """Return the packages that a wheel pins to one version on Linux, but for torch.

    Which torch that would be, for which CUDA, is up to the index that pip asks.
    """
    found = []
    for text in own.requires:
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            continue
        pin = re.fullmatch(r"==([\w.+]+)", str(needed.specifier))
        linux = {"platform_system": "Linux", "platform_machine": "x86_64", "extra": ""}
        if (
            pin
            and needed.name != "torch"
            and (needed.marker is None or needed.marker.evaluate(linux))
        ):
            found.append(Distribution(name=needed.name, version=pin[1]))
    return found
