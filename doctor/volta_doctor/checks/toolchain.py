"""Would a build on this host make code for Volta?"""

import re
from collections.abc import Iterable

from volta_doctor.catalog import Row, compat
from volta_doctor.checks.environments import nothing
from volta_doctor.checks.registry import check
from volta_doctor.checks.units import drop_in
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.facts.toolchain import Build, TritonPtxas
from volta_doctor.facts.toolchain.cuda_tools import Tool
from volta_doctor.findings import Evidence, Finding, Step

# From this release on, nvcc warns that sm_70 is deprecated.
_WARNS_FROM = (12, 8)


def release(tool: Tool) -> tuple[int, ...]:
    """Return a tool's CUDA release as numbers, (0,) where it is not known."""
    return _numbers(tool.release or "0")


def makes_volta_code(tool: Tool) -> bool:
    """Say whether a compiler of this release knows sm_70."""
    edges = compat().toolkit
    return _numbers(edges.nvcc_min) <= release(tool) < _numbers(edges.nvcc_below)


def _numbers(version: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version))
    if not numbers:
        raise Missing(f"{version!r} is no version.")
    return numbers


def _env_of(facts: Facts, prefix: str | None) -> PythonEnv | None:
    return next((e for e in facts.python_envs.need().envs if e.prefix == prefix), None)


def _set_variable(facts: Facts, row: Row, unit: str | None, line: str) -> list[Step]:
    """Return the steps that set a variable of a server's unit, none where it has no unit here."""
    found = facts.units.data.find(unit) if facts.units.data and unit else None
    return drop_in(row, found, {"Service": [f"Environment={line}"]}) if found else []


@check("nvcc")
def nvcc(facts: Facts, row: Row) -> Iterable[Finding]:
    """Judge the nvcc that torch would run for this shell and for each server."""
    found = facts.toolchain.need()
    builds = [build for build in found.builds if build.nvcc or build.problem]
    for build in builds:
        if build.nvcc is None:
            yield row.unknown(f"It cannot be judged: {build.problem}.", subject=build.name)
        else:
            yield _judge_nvcc(facts, row, build, build.nvcc)
    if not builds:
        yield nothing(row, found.problem, "There is no nvcc on this host.")


def _judge_nvcc(facts: Facts, row: Row, build: Build, tool: Tool) -> Finding:
    seen = [Evidence(f"nvcc by {build.nvcc_by}", f"{tool.real}: release {tool.release}")]
    seen += [Evidence("run by it", f"{t.real}: release {t.release}") for t in build.beside]
    if tool.release is None:
        text = f"The release of {tool.path} is not known: {tool.problem}."
        return row.unknown(text, *seen, subject=build.name)
    wrong = [t for t in (tool, *build.beside) if t.release and not makes_volta_code(t)]
    steps = _take_another(facts, row, build)
    if wrong:
        text = f"{wrong[0].path} is from CUDA {wrong[0].release}, which does not make sm_70 code."
        return row.fail(text + _other(facts), *seen, subject=build.name, steps=steps)
    if mixed := [t for t in build.beside if t.release != tool.release]:
        text = f"nvcc {tool.release} runs {mixed[0].path}, which is from CUDA {mixed[0].release}."
        return row.warn(text, *seen, subject=build.name)
    env = _env_of(facts, build.env)
    if env and env.torch_cuda and _numbers(env.torch_cuda)[0] != release(tool)[0]:
        text = f"nvcc is {tool.release}, and the server's torch is for CUDA {env.torch_cuda}."
        return row.warn(text + _other(facts), *seen, subject=build.name, steps=steps)
    if release(tool) >= _WARNS_FROM:
        text = f"nvcc {tool.release} makes sm_70 code with a warning, which -Werror does not bear."
        return row.info(text, *seen, subject=build.name)
    return row.ok(f"nvcc {tool.release} makes sm_70 code.", *seen, subject=build.name)


def _best(facts: Facts, build: Build | None = None) -> Tool | None:
    """Return the host's newest nvcc for Volta; for a server, one of its torch's major version."""
    env = _env_of(facts, build.env) if build else None
    major = _numbers(env.torch_cuda)[0] if env and env.torch_cuda else None
    tools = [t for t in facts.toolchain.need().compilers if makes_volta_code(t)]
    tools = [t for t in tools if major in (None, release(t)[0])]
    return max(tools, key=release, default=None)


def _other(facts: Facts) -> str:
    best = _best(facts)
    return f" {best.path} ({best.release}) does." if best else " No other nvcc here does."


def _take_another(facts: Facts, row: Row, build: Build) -> list[Step]:
    best = _best(facts, build)
    if best is None or not best.path.endswith("/bin/nvcc"):
        return []
    home = best.path.removesuffix("/bin/nvcc")
    return _set_variable(facts, row, build.unit, f"CUDA_HOME={home}")


@check("ptxas-mismatch")
def ptxas_mismatch(facts: Facts, row: Row) -> Iterable[Finding]:
    """Triton compiles at run time, with a ptxas of its own."""
    found, envs = facts.toolchain.need(), facts.python_envs.need()
    for item in found.triton:
        yield _judge_ptxas(facts, row, item)
    if not found.triton:
        yield nothing(row, envs.problem, "No environment of a server holds Triton.")


def _judge_ptxas(facts: Facts, row: Row, item: TritonPtxas) -> Finding:
    tool, env = item.tool, _env_of(facts, item.env)
    seen = Evidence(f"ptxas by {item.by}", f"{tool.real}: release {tool.release}")
    if tool.release is None:
        text = f"The release of {tool.path} is not known: {tool.problem}."
        return row.unknown(text, seen, subject=item.name)
    if not makes_volta_code(tool):
        best = _best(facts)
        ptxas = f"{best.path.removesuffix('/nvcc')}/ptxas" if best else ""
        steps = _set_variable(facts, row, item.unit, f"TRITON_PTXAS_PATH={ptxas}") if best else []
        text = f"{item.by} leads to a ptxas of CUDA {tool.release}, which does not know sm_70."
        return row.fail(text, seen, subject=item.name, steps=steps)
    if env and env.torch_cuda and _numbers(env.torch_cuda)[0] != release(tool)[0]:
        text = f"Triton's ptxas is from CUDA {tool.release}, and torch is for {env.torch_cuda}."
        return row.warn(text, seen, subject=item.name)
    return row.ok(f"ptxas is from CUDA {tool.release}.", seen, subject=item.name)
