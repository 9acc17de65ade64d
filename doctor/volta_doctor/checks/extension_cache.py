"""Do the extensions that torch compiled on this host belong to the torch that loads them?"""

from collections.abc import Iterable, Iterator

from volta_doctor.catalog import Row
from volta_doctor.checks.environments import nothing, torch_tag
from volta_doctor.checks.registry import check
from volta_doctor.facts.ext_cache import Cache, Extension
from volta_doctor.facts.model import Facts
from volta_doctor.facts.processes import COMPILERS
from volta_doctor.facts.python_envs import SHELL, PythonEnv
from volta_doctor.findings import HOST, Evidence, Finding, Step

_STALE_S = 600  # of a lock


def aside(path: str, moved: str) -> Step:
    """Return the step that renames a file or directory, so that nothing is lost.

    mv refuses where a directory of the new name has something in it.
    """
    return Step(run=["mv", "-T", path, moved], undo=["mv", "-T", moved, path])


@check("ext-cache")
def ext_cache(facts: Facts, row: Row) -> Iterable[Finding]:
    """A stale extension fails with undefined symbols, or silently uses an old interface."""
    found, envs = facts.ext_cache.need(), facts.python_envs.need()
    unread = [env for env in envs.envs if env.problem]
    with_torch = [env for env in envs.envs if env.torch]
    for cache in found.caches:
        if cache.problem:
            yield row.unknown(f"It cannot be read: {cache.problem}.", subject=cache.path)
        elif unread:
            text = f"{unread[0].prefix} cannot be read: {unread[0].problem}"
            yield row.unknown(f"What belongs there is not known: {text}.", subject=cache.path)
        else:
            yield _judge_cache(row, cache, [e for e in with_torch if _looks_there(e, cache)])
    if found.caches:
        return
    if found.problem:
        yield nothing(row, found.problem, "No cache of extensions was found.")
    else:
        yield row.ok("There is no cache of compiled extensions.")


def _looks_there(env: PythonEnv, cache: Cache) -> bool:
    # This shell may run any of the environments.
    return SHELL in cache.used_by or not set(env.used_by).isdisjoint(cache.used_by)


def _judge_cache(row: Row, cache: Cache, envs: list[PythonEnv]) -> Finding:
    tags = {torch_tag(env) for env in envs}
    shown = ", ".join(sorted(tags)) or "none"
    seen = Evidence(cache.path, ", ".join(extension.name for extension in cache.extensions))
    if not envs:
        return row.skip("No torch that would look there is known.", seen, subject=cache.path)
    if cache.tag and cache.tag not in tags:
        text = f"It is for {cache.tag}, and the environments that look there are {shown}."
        steps = [aside(cache.path, f"{cache.path}.stale")]
        return row.warn(text, seen, subject=cache.path, steps=steps)
    fitting = [env for env in envs if cache.tag in (None, torch_tag(env))]
    newest = max(fitting, key=lambda env: env.torch_time)
    old = [e for e in cache.extensions if e.built is not None and e.built < newest.torch_time]
    if not old:
        text = f"Its extensions are of {torch_tag(newest)}, and newer than torch."
        return row.ok(text, seen, subject=cache.path)
    names = ", ".join(extension.name for extension in old)
    days = max((newest.torch_time - (extension.built or 0)) / 86400 for extension in old)
    text = f"Older than torch {newest.torch} in {newest.prefix}, by up to {days:.1f} days: {names}."
    # beside the cache, where nobody looks for extensions
    steps = [aside(f"{cache.path}/{e.name}", f"{cache.path}.stale-{e.name}") for e in old]
    return row.warn(text, seen, subject=cache.path, steps=steps)


@check("ext-lock")
def ext_lock(facts: Facts, row: Row) -> Iterable[Finding]:
    """A process that finds a lock waits for ever, without a word."""
    found, processes = facts.ext_cache.need(), facts.processes.need()
    alive = [f"{tool.name} (pid {tool.pid})" for tool in processes.tools if tool.name in COMPILERS]
    locks = list(_locks(found.caches))
    for path, locked in locks:
        age = found.time - locked
        seen = Evidence(path, f"{age} s old; compilers alive: {', '.join(alive) or 'none'}")
        if age <= _STALE_S or alive:
            text = f"A build is running: its lock is {age / 60:.0f} min old."
            yield row.info(text, seen, subject=path)
        else:
            text = (
                f"Its lock is {age / 60:.0f} min old and no compiler is alive: loads wait for ever."
            )
            yield row.fail(text, seen, subject=path, steps=[aside(path, f"{path}.stale-{locked}")])
    problems = [(cache.path, cache.problem) for cache in found.caches if cache.problem]
    if found.problem:
        problems.append((HOST, found.problem))
    for path, problem in problems:
        yield row.unknown(f"There may be a lock: {problem}.", subject=path)
    if not locks and not problems:
        yield row.ok("No extension is locked.")


def _locks(caches: list[Cache]) -> Iterator[tuple[str, int]]:
    for cache in caches:
        for extension in cache.extensions:
            if extension.locked is not None:
                yield _path(cache, extension), extension.locked


def _path(cache: Cache, extension: Extension) -> str:
    return f"{cache.path}/{extension.name}/lock"
