"""Do the variables that choose architectures ask a build for Volta's?"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.checks.environments import nothing, volta_arch
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.toolchain import Build
from volta_doctor.findings import SEVERITY, Evidence, Finding

_VARIABLES = ("TORCH_CUDA_ARCH_LIST", "CMAKE_CUDA_ARCHITECTURES", "CUDAARCHS")
# Names that torch.utils.cpp_extension takes as well, each for its generation and PTX.
_GENERATIONS = {
    "Maxwell": 50,
    "Pascal": 60,
    "Volta": 70,
    "Turing": 75,
    "Ampere": 80,
    "Ada": 89,
    "Hopper": 90,
    "Blackwell": 100,
}
_ALL, _VISIBLE = ("all", "all-major"), ("native", "")


class Entry(NamedTuple):
    """One architecture of a list: its number (75 for 7.5), and what is made for it."""

    number: int
    machine_code: bool
    ptx: bool


def parse(variable: str, text: str) -> list[Entry]:
    """Return the architectures of a list; words that name none are left out.

    TORCH_CUDA_ARCH_LIST has 7.0, 7.0+PTX or Volta between blanks or semicolons; CMake's variables
    have 70, 70-real or 70-virtual between semicolons.
    """
    found = []
    for word in re.split(r"[;,\s]+", text.strip()):
        if word in _GENERATIONS:
            found.append(Entry(_GENERATIONS[word], machine_code=True, ptx=True))
        elif variable == "TORCH_CUDA_ARCH_LIST":
            if match := re.fullmatch(r"(\d+)\.(\d)[af]?(\+PTX)?", word):
                found.append(Entry(int(match[1] + match[2]), True, ptx=bool(match[3])))
        elif match := re.fullmatch(r"(\d+)[af]?(-real|-virtual)?", word):
            kind = match[2]
            found.append(Entry(int(match[1]), kind != "-virtual", ptx=kind != "-real"))
    return found


def shown(number: int) -> str:
    """Name an architecture as people know it: 7.5 is Turing."""
    generation = [name for name, first in _GENERATIONS.items() if first <= number][-1:]
    return " is ".join([f"{number // 10}.{number % 10}", *generation])


@check("arch-list-env")
def arch_list_env(facts: Facts, row: Row) -> Iterable[Finding]:
    """Judge the variables of this shell and of each server."""
    found = facts.toolchain.need()
    if not found.compilers and not any(build.nvcc for build in found.builds):
        problems = [found.problem, *(build.problem for build in found.builds)]
        yield nothing(row, next(filter(None, problems), ""), "There is no nvcc on this host.")
        return
    for build in found.builds:
        if build.problem:
            yield row.unknown(f"It cannot be judged: {build.problem}.", subject=build.name)
            continue
        judged = [
            _judge(row, build, name, build.variables[name])
            for name in _VARIABLES
            if build.variables.get(name)
        ]
        if judged:
            yield min(judged, key=lambda finding: SEVERITY.index(finding.status))
        else:
            text = "TORCH_CUDA_ARCH_LIST is unset: torch builds for the cards that it sees then."
            seen = Evidence(f"environment of {build.name}", "TORCH_CUDA_ARCH_LIST is unset")
            yield row.info(text, seen, subject=build.name)


def _judge(row: Row, build: Build, variable: str, text: str) -> Finding:
    seen = Evidence(f"environment of {build.name}", f"{variable}={text}")
    volta = int(volta_arch())
    if text in _ALL:
        return row.ok(f"{variable}={text} has 7.0 in it.", seen, subject=build.name)
    if text in _VISIBLE:
        said = f"{variable}={text}: a build is for the cards that it sees then."
        return row.info(said, seen, subject=build.name)
    found = parse(variable, text)
    if any(entry.number == volta and entry.machine_code for entry in found):
        if build.engine == "1cat-vllm" and len({entry.number for entry in found}) > 1:
            said = f"{variable}={text}: beside others, 1Cat-vLLM's SM70 Marlin kernels are skipped."
            return row.warn(said, seen, subject=build.name)
        return row.ok(f"{variable}={text} has 7.0 in it.", seen, subject=build.name)
    if any(entry.number <= volta and entry.ptx for entry in found):
        said = f"{variable}={text} makes no machine code for a V100, only PTX that it compiles."
        return row.info(said, seen, subject=build.name)
    named = ", ".join(shown(entry.number) for entry in found) or "it names no architecture"
    said = f"{variable}={text} makes no code for a V100: {named}; a V100 is 7.0."
    return row.fail(said, seen, subject=build.name)
