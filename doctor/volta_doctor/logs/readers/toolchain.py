"""Which nvcc, ptxas and GCC a text shows, and what steers a build."""

import re
from collections.abc import Iterator

from volta_doctor.facts.model import Facts
from volta_doctor.facts.toolchain import VARIABLES, Build, ToolchainFacts, TritonPtxas
from volta_doctor.facts.toolchain.cuda_tools import Tool
from volta_doctor.facts.toolchain.host_compiler import HostCompiler
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.readers._names import ENVIRONMENT, SERVER
from volta_doctor.logs.text import Text

_RELEASE = re.compile(r"Cuda compilation tools, release (\d+\.\d+)")
_PROGRAM = re.compile(r"^(nvcc|ptxas|fatbinary|nvlink|cicc|cuobjdump): NVIDIA")
# collect_env's "CUDA runtime version" is what nvcc says of itself.
_COLLECTED = re.compile(r"CUDA runtime version\s*:\s*(\d+\.\d+)")
_GCC = re.compile(
    r"^(?:GCC version\s*:|GCC:)?\s*(?:gcc|g\+\+|x86_64\S*-gcc)?\s*\(.*?\)\s+(\d+)\.\d+\.\d+\b"
)
_ASKED = re.compile(r"(?:^|\s)(\S{0,200}?(?:nvcc|ptxas))\s+(?:--version|-V)\b")
_VARIABLE = re.compile(
    rf"(?:^|[\s\"'])(?:export )?({'|'.join(VARIABLES)})=(\"[^\"]*\"|'[^']*'|\S*)"
)
_NVCC, _PTXAS = "nvcc", "ptxas"


@reader("Cuda compilation tools", "CUDA runtime version", "TORCH_CUDA_ARCH_LIST=", "ARCHITECTURES=")
def toolchain(text: Text) -> Iterator[Part]:
    """Yield the first of each as one build of the server's environment."""
    found: dict[str, Tool] = {}
    variables: dict[str, str] = {}
    gcc: HostCompiler | None = None
    seen: list[Seen] = []
    program = _NVCC
    asked: dict[str, str] = {}
    for line in text.lines:
        body, words = line.body, ""
        for name, given in _VARIABLE.findall(body):
            if variables.setdefault(name, given.strip("\"'")) == given.strip("\"'"):
                words = f"{name}="
        if match := _ASKED.search(body):
            asked[match[1].rsplit("/", 1)[-1]] = match[1]
        if match := _PROGRAM.match(body):
            program = match[1]
        release = _RELEASE.search(body)
        told = release or _COLLECTED.search(body)
        if told:
            name = program if release else _NVCC
            path = asked.get(name, name)
            found.setdefault(name, Tool(path=path, real=path, release=told[1]))
            program, words = _NVCC, path
        elif (match := _GCC.match(body)) and gcc is None and "CUDA" not in body:
            gcc, words = HostCompiler(path="gcc", by="PATH", version=int(match[1])), "gcc"
        if words:
            seen.append(Seen("toolchain", words, text.evidence(line)))
    if not found and not variables:
        return
    ptxas = found.get(_PTXAS)
    of_triton = ptxas is not None and "triton" in ptxas.path
    build = Build(
        name=SERVER,
        env=ENVIRONMENT,
        variables=variables,
        nvcc=found.get(_NVCC),
        nvcc_by="PATH",
        beside=[ptxas] if ptxas and not of_triton else [],
        gcc=gcc if _NVCC in found else None,
    )
    triton = [
        TritonPtxas(name=SERVER, env=ENVIRONMENT, tool=tool, by="Triton's own")
        for tool in [ptxas]
        if tool and of_triton
    ]
    facts = ToolchainFacts(compilers=[], builds=[build], triton=triton)
    judges = ["nvcc", "ptxas-mismatch"]
    judges += ["arch-list-env"] if "TORCH_CUDA_ARCH_LIST" in variables else []
    yield Part(Facts(toolchain=section(facts)), judges, seen)
