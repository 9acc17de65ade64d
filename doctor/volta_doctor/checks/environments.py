"""Each Python environment that a server runs in, as the subject of a finding."""

from collections.abc import Callable, Iterable

from volta_doctor.catalog import Row, compat
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.findings import Finding

Judge = Callable[[PythonEnv], Finding]


def each_env(facts: Facts, row: Row, judge: Judge) -> Iterable[Finding]:
    """Judge every environment; without one, or without an answer, say why it is not."""
    found = facts.python_envs.need()
    for env in found.envs:
        if env.problem:
            yield row.unknown(f"It cannot be read: {env.problem}.", subject=env.prefix)
            continue
        try:
            yield judge(env)
        except Missing as reason:
            yield row.unknown(str(reason), subject=env.prefix)
    if not found.envs:
        yield nothing(row, found.problem, "No server of this host runs in a Python environment.")


def all_looked_at(facts: Facts, env: PythonEnv) -> None:
    """Raise Missing where an environment may hold extensions that were not looked at."""
    if facts.so_archs.data is None:
        raise Missing(f"Its extensions were not looked at: {facts.so_archs.error}.")
    if unread := facts.so_archs.data.unread.get(env.prefix):
        raise Missing(f"Not all extensions were looked at: {unread[0]}.")


def environment_of(facts: Facts, server: str) -> PythonEnv:
    """Return the environment that a server runs in. Raises Missing where it was not read."""
    for env in facts.python_envs.need().envs:
        if server in env.used_by:
            if env.problem:
                raise Missing(f"Its Python environment cannot be read: {env.problem}.")
            return env
    raise Missing("Its Python environment was not read.")


def nothing(row: Row, problem: str, text: str) -> Finding:
    """Say that there is nothing to judge, or that it may have been missed."""
    if problem:
        return row.unknown(f"{text} One may have been missed: {problem}.")
    return row.skip(text)


def torch_tag(env: PythonEnv) -> str:
    """Return the directory that torch.utils.cpp_extension keeps its builds in: py311_cu128."""
    cuda = f"cu{env.torch_cuda.replace('.', '')}" if env.torch_cuda else "cpu"
    return f"py{env.tag.removeprefix('cp')}_{cuda}"


def volta_arch() -> str:
    """Return Volta's architecture as device code names it: 70."""
    return compat().volta.compute_capability.replace(".", "")
