"""Lines that name an installed Python package with its version, as pip, uv and conda print them."""

import re
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from volta_doctor.facts.python_envs.distributions import CondaPackage, Distribution
from volta_doctor.logs.text import Line, Text

_NAME, _VERSION = r"\d{0,2}[A-Za-z][\w.-]*", r"\d[\w.+!]*"
_HEAD = re.compile(r"Package\s+Version\b", re.IGNORECASE)
_CONDA_HEAD = re.compile(r"#?\s*Name\s+Version\s+Build\b")
_RULER = re.compile(r"[-\u2500\s|+]+")
_ROW = re.compile(rf"[|\s]*({_NAME})[\s|]+({_VERSION})(?:[\s|].*)?")
_GREPPED = re.compile(rf"({_NAME})\s{{2,}}({_VERSION})(?:\s+\S+)?")
_FROZEN = re.compile(rf"(?:\[pip3?\]\s+|[-*]\s+)?({_NAME})(?:\[[\w,]+\])?==({_VERSION})")
_CONDA = re.compile(rf"(\[conda\]\s+)?({_NAME})\s+({_VERSION})\s+(\S+)(?:\s+\S+)?")
_NAMED = re.compile(r"Name:\s*(\S+)$")
_VERSIONED = re.compile(rf"Version:\s*({_VERSION})$")
_INSTALLED = "Successfully installed "
_SATISFIED = re.compile(rf"Requirement already satisfied: ({_NAME}).* \(({_VERSION})\)$")
_ENGINES = (
    re.compile(rf"\b(vLLM)(?: API server)? Version\s*:?\s*v?({_VERSION})", re.IGNORECASE),
    re.compile(rf"Initializing an? (?:V\d )?(LLM) engine \(v({_VERSION})\)"),
    re.compile(rf"^(LMDeploy|sglang|triton|transformers|flash_attn|flashinfer_python):\s*({_VERSION})"),
)  # fmt: skip
# Where no head says that these are packages: names that no other list has.
_TELLING = re.compile(
    r"(?:torch\w*|nvidia-[\w-]+|vllm|1cat-vllm|triton|xformers|flash-?attn|flashinfer[\w-]*|sglang"
    r"|sgl-kernel|lmdeploy|bitsandbytes|cupy-cuda\w+|autoawq|auto-gptq|gptqmodel|deepspeed)"
)


def packages(text: Text) -> Iterator[tuple[Line, Distribution | CondaPackage]]:
    """Yield each package with the line that names it."""
    kind, shown = "", ""
    for line in text.lines:
        body = line.body
        if _CONDA_HEAD.match(body):
            kind = "conda"
        elif _HEAD.match(body):
            kind = "pip"
        elif match := _NAMED.match(body):
            shown = match[1]
        elif shown and (match := _VERSIONED.match(body)):
            yield line, _distribution(shown, match[1])
            shown = ""
        elif match := _FROZEN.fullmatch(body):
            yield line, _distribution(match[1], match[2])
        elif (match := _CONDA.fullmatch(body)) and (match[1] or kind == "conda"):
            if match[4].startswith("pypi"):
                yield line, _distribution(match[2], match[3])
            else:
                yield line, CondaPackage(name=match[2], version=match[3], build=match[4])
        elif (kind and (match := _ROW.fullmatch(body))) or (
            (match := _GREPPED.fullmatch(body)) and _TELLING.fullmatch(match[1].lower())
        ):
            yield line, _distribution(match[1], match[2])
        elif _INSTALLED in body:
            for word in body.partition(_INSTALLED)[2].split():
                name, _, version = word.rpartition("-")
                if name and version[0].isdigit():
                    yield line, _distribution(name, version)
        elif match := _SATISFIED.match(body):
            yield line, _distribution(match[1], match[2])
        elif match := next(filter(None, (engine.search(body) for engine in _ENGINES)), None):
            name = "vllm" if match[1] == "LLM" else match[1]
            yield line, _distribution(name, match[2])
        elif kind and not _RULER.fullmatch(body):
            kind = ""


def _distribution(name: str, version: str) -> Distribution:
    return Distribution(name=canonicalize_name(name), version=version)
