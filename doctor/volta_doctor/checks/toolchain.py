"""Would a build on this host make code for Volta?"""

import posixpath
from collections.abc import Iterable

from volta_doctor.catalog import Row, compat
from volta_doctor.checks.environments import environment_of, nothing
from volta_doctor.checks.registry import check
from volta_doctor.checks.units import drop_in
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.toolchain import Build, Compiler, TritonPtxas
from volta_doctor.facts.toolchain.cuda_tools import Tool
from volta_doctor.findings import Evidence, Finding, Step
from volta_doctor.words import numbers, several

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
    found = tuple(numbers(version))
    if not found:
        raise Missing(f"{version!r} is no version.")
    return found


def _torch_cuda(facts: Facts, build: Build) -> str | None:
    """Return the CUDA version of a server's torch; a shell has none. Raises Missing."""
    return environment_of(facts, build.name).torch_cuda if build.env else None


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
            continue
        try:
            yield _judge_nvcc(facts, row, build, build.nvcc)
        except Missing as reason:
            yield row.unknown(str(reason), subject=build.name)
    if not builds:
        yield nothing(row, found.problem, "There is no nvcc on this host.")


def _judge_nvcc(facts: Facts, row: Row, build: Build, tool: Tool) -> Finding:
    known = f"release {tool.release}" if tool.release else tool.problem
    seen = [Evidence(f"nvcc by {build.nvcc_by}", f"{tool.real}: {known}")]
    seen += [Evidence("run by it", f"{t.path}: release {t.release}") for t in build.beside]
    if tool.missing:
        text = (
            f"{build.nvcc_by} leads to {tool.path}, which is not there: no extension can be built."
        )
        steps = _take_another(facts, row, build)
        return row.fail(text + _other(facts), *seen, subject=build.name, steps=steps)
    if tool.release is None:
        text = f"The release of {tool.path} is not known: {tool.problem}."
        return row.unknown(text, *seen, subject=build.name)
    steps = _take_another(facts, row, build)
    if not makes_volta_code(tool):
        text = f"{tool.path} is from CUDA {tool.release}, which does not make sm_70 code."
        return row.fail(text + _other(facts), *seen, subject=build.name, steps=steps)
    mixed = [t for t in build.beside if t.release and t.release != tool.release]
    # Linking device code (nvcc -rdc) is all that nvlink is for: most builds never run it.
    mixed.sort(key=lambda t: (makes_volta_code(t), posixpath.basename(t.path) == "nvlink"))
    if mixed:
        fails = not makes_volta_code(mixed[0]) and posixpath.basename(mixed[0].path) != "nvlink"
        say = row.fail if fails else row.warn
        return say(_mixed(build, tool, mixed), *seen, subject=build.name, steps=steps)
    cuda = _torch_cuda(facts, build)
    if cuda and _numbers(cuda)[0] != release(tool)[0]:
        text = f"nvcc is {tool.release}, and the server's torch is for CUDA {cuda}."
        return row.warn(text + _other(facts), *seen, subject=build.name, steps=steps)
    if text := _too_new(facts, build, tool):
        gcc = Evidence(f"host compiler by {build.gcc.by}", build.gcc.path) if build.gcc else seen[0]
        return row.warn(text, *seen, gcc, subject=build.name)
    notes = [_too_many_jobs(facts, build)]
    if release(tool) >= _WARNS_FROM:
        text = f"nvcc {tool.release} makes sm_70 code with a warning, which -Werror does not bear."
        notes.insert(0, text)
    if any(notes):
        return row.info(" ".join(filter(None, notes)), *seen, subject=build.name)
    return row.ok(f"nvcc {tool.release} makes sm_70 code.", *seen, subject=build.name)


def _mixed(build: Build, nvcc: Tool, mixed: list[Tool]) -> str:
    """Say which parts come from another CUDA than nvcc, what that breaks, and what mends it."""
    parts = " and ".join(f"{tool.path} of CUDA {tool.release}" for tool in mixed)
    text = f"{nvcc.path} is from CUDA {nvcc.release} and runs {parts}, which PATH leads to first"
    if not all(map(makes_volta_code, mixed)):
        text += ": builds for sm_70 end with \"Value 'sm_70' is not defined\""
    if build.fitting:
        before = ", ".join(dict.fromkeys(posixpath.dirname(tool.path) for tool in mixed))
        return f"{text}. Put {', '.join(build.fitting)} before {before} in PATH."
    return f"{text}. No directory of PATH has those of CUDA {nvcc.release}: install them."


def _too_new(facts: Facts, build: Build, nvcc: Tool) -> str:
    """Say that nvcc refuses its host compiler, and which one here it takes; empty where it fits."""
    newest = compat().toolkit.gcc_for(nvcc.release or "0")
    gcc = build.gcc
    if gcc is None or gcc.version is None or newest is None or gcc.version <= newest:
        return ""
    text = (
        f"{gcc.path} (by {gcc.by}) is GCC {gcc.version}, and nvcc {nvcc.release} takes {newest} at"
        ' most: builds end with "unsupported GNU version".'
    )
    fitting = [g for g in facts.toolchain.need().gccs if g.version and g.version <= newest]
    if not fitting:
        return f"{text} Install g++-{newest}, and set CC=gcc-{newest} and CXX=g++-{newest}."
    path = fitting[-1].path
    return f"{text} Set CC={path} and CXX={path.replace('gcc-', 'g++-')}."


def _too_many_jobs(facts: Facts, build: Build) -> str:
    """Say that the jobs of a build may need more memory than is free, by a rule of thumb."""
    cpus, host = facts.toolchain.need().cpus, facts.host.data
    thumb, given = compat().toolkit.build_jobs, build.variables.get("MAX_JOBS", "")
    if cpus is None or host is None or host.available_bytes is None:
        return ""
    jobs = int(given) if given.isdigit() else cpus + thumb.over_cpus
    free = host.available_bytes
    if jobs * thumb.bytes <= free:
        return ""
    by = f"MAX_JOBS={given} asks for" if given.isdigit() else "MAX_JOBS is unset: ninja starts"
    return (
        f"{by} {several(jobs, 'job')}; the largest sources take {thumb.bytes / 1e9:.0f} GB a job,"
        f" and {free / 1e9:.0f} GB are free: set MAX_JOBS={max(1, free // thumb.bytes)}."
    )


def _best(facts: Facts, cuda: str | None = None) -> Compiler | None:
    """Return the host's newest nvcc for Volta, of a CUDA's major version where one is given.

    One with all its parts comes before one without.
    """
    major = _numbers(cuda)[0] if cuda else None
    tools = [t for t in facts.toolchain.need().compilers if makes_volta_code(t)]
    tools = [t for t in tools if major in (None, release(t)[0])]
    return max(tools, key=lambda tool: (not tool.apart, release(tool)), default=None)


def _other(facts: Facts) -> str:
    best = _best(facts)
    if best is None:
        return " No other nvcc here makes it." if facts.toolchain.need().compilers else ""
    where = ", where its own ptxas comes first in PATH" if best.apart else ""
    return f" {best.path} ({best.release}) makes sm_70 code{where}."


def _take_another(facts: Facts, row: Row, build: Build) -> list[Step]:
    try:
        best = _best(facts, _torch_cuda(facts, build))
    except Missing:
        return []
    if best is None or best.apart or not best.path.endswith("/bin/nvcc"):
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
    tool, envs = item.tool, facts.python_envs.need().envs
    env = next((env for env in envs if env.prefix == item.env), None)
    seen = Evidence(f"ptxas by {item.by}", f"{tool.real}: release {tool.release}")
    if tool.release is None:
        text = f"The release of {tool.path} is not known: {tool.problem}."
        return row.unknown(text, seen, subject=item.name)
    if not makes_volta_code(tool):
        best = _best(facts)
        own = f"{posixpath.dirname(best.real)}/ptxas" if best and not best.apart else ""
        steps = _set_variable(facts, row, item.unit, f"TRITON_PTXAS_PATH={own}") if own else []
        text = f"{item.by} leads to a ptxas of CUDA {tool.release}, which does not know sm_70."
        return row.fail(text, seen, subject=item.name, steps=steps)
    if env and env.torch_cuda and _numbers(env.torch_cuda)[0] != release(tool)[0]:
        text = f"Triton's ptxas is from CUDA {tool.release}, and torch is for {env.torch_cuda}."
        return row.warn(text, seen, subject=item.name)
    return row.ok(f"ptxas is from CUDA {tool.release}.", seen, subject=item.name)
