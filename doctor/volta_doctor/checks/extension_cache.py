"""Does what was compiled on this host belong to what loads it?"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator

from volta_doctor.catalog import Row
from volta_doctor.checks.environments import nothing, torch_tag
from volta_doctor.checks.registry import check
from volta_doctor.facts.ext_cache import Cache
from volta_doctor.facts.ext_cache.entries import Extension
from volta_doctor.facts.ext_cache.kinds import KINDS
from volta_doctor.facts.model import Facts
from volta_doctor.facts.processes import COMPILERS
from volta_doctor.facts.python_envs import SHELL, PythonEnv
from volta_doctor.findings import HOST, Evidence, Finding, Step
from volta_doctor.words import few

_STALE_S = 600  # of a lock
_PACKAGES = {kind.name: kind.package for kind in KINDS}


def set_aside(cache: Cache, path: str, inode: int | None) -> list[Step]:
    """Return the step that renames a part of a cache, so that nothing is lost.

    There is none for what a link leads to, nor in a container, whose caches go with its image.
    """
    if inode is None or path.startswith("/proc/"):
        return []
    run = ["volta-doctor", "set-aside", f"--within={cache.root or cache.path}", f"--inode={inode}"]
    return [Step(run=[*run, path], undo=[*run, "--back", path])]


@check("ext-cache")
def ext_cache(facts: Facts, row: Row) -> Iterable[Finding]:
    """A stale extension fails with undefined symbols, or silently uses an old interface."""
    found, envs = facts.ext_cache.need(), facts.python_envs.need()
    unread = [env for env in envs.envs if env.problem]
    for cache in found.caches:
        if cache.problem:
            yield row.unknown(f"It cannot be read: {cache.problem}.", subject=cache.path)
        elif unread:
            text = f"{unread[0].prefix} cannot be read: {unread[0].problem}"
            yield row.unknown(f"What belongs there is not known: {text}.", subject=cache.path)
        else:
            yield _judge_cache(facts, row, cache, [e for e in envs.envs if _looks_there(e, cache)])
    if found.caches:
        return
    if found.problem:
        yield nothing(row, found.problem, "No cache of extensions was found.")
    else:
        yield row.ok("There is no cache of compiled extensions.")


def _looks_there(env: PythonEnv, cache: Cache) -> bool:
    # This shell may run any of the environments.
    return SHELL in cache.used_by or not set(env.used_by).isdisjoint(cache.used_by)


def _judge_cache(facts: Facts, row: Row, cache: Cache, envs: list[PythonEnv]) -> Finding:
    names = [extension.name for extension in cache.extensions] or list(cache.kernels)
    seen = [Evidence(cache.path, few(names) or f"{cache.count} entries")]
    if wrong := _owners(cache):
        seen += [Evidence(cache.path, f"owner: {cache.owner}")]
        steps = [s for e in cache.extensions if e.owner and e.built for s in _of(cache, e)]
        return row.warn(wrong, *seen, subject=cache.path, steps=steps)
    if cache.kind == "torch_extensions" and (stale := _judge_torch(row, cache, envs, seen)):
        return stale
    notes = [*_leftovers(facts, cache, envs), *_half_built(cache), *_freeing(cache)]
    if notes:
        return row.info(" ".join(notes), *seen, subject=cache.path)
    return row.ok(f"{cache.kind}: what is in it fits.", *seen, subject=cache.path)


def _of(cache: Cache, extension: Extension) -> list[Step]:
    return set_aside(cache, f"{cache.path}/{extension.name}", extension.inode)


def _owners(cache: Cache) -> str:
    """Say which servers use a cache, or an entry, of another user; empty where none does."""
    for server, user in ((u.server, u.account) for u in cache.users):
        if cache.owner and cache.owner != user:
            if user == "root":
                return f"It belongs to {cache.owner}, who so decides what {server} runs as root."
            return (
                f"It belongs to {cache.owner}, and {server} runs as {user}: what {user} builds"
                " there ends with Permission denied."
            )
    others = {e.name: e.owner for e in cache.extensions if e.owner}
    if not others:
        return ""
    shown = few([f"{name} ({owner})" for name, owner in others.items()])
    return f"It belongs to {cache.owner}, and other users have built in it: {shown}."


def _judge_torch(
    row: Row, cache: Cache, envs: list[PythonEnv], seen: list[Evidence]
) -> Finding | None:
    """Judge what torch loads by its name, whatever it was built with; None where it fits."""
    envs = [env for env in envs if env.torch]
    tags = {torch_tag(env) for env in envs}
    shown = ", ".join(sorted(tags)) or "none"
    if not envs:
        return row.skip("No torch that would look there is known.", *seen, subject=cache.path)
    if cache.tag and cache.tag not in tags:
        text = f"It is for {cache.tag}, and the environments that look there are {shown}."
        steps = set_aside(cache, cache.path, cache.inode)
        return row.warn(text, *seen, subject=cache.path, steps=steps)
    fitting = [env for env in envs if cache.tag in (None, torch_tag(env))]
    newest = max(fitting, key=lambda env: env.torch_time)
    old = [e for e in cache.extensions if e.built is not None and e.built < newest.torch_time]
    if not old:
        return None
    names = ", ".join(extension.name for extension in old)
    days = max((newest.torch_time - (extension.built or 0)) / 86400 for extension in old)
    text = f"Older than torch {newest.torch} in {newest.prefix}, by up to {days:.1f} days: {names}."
    steps = [step for extension in old for step in _of(cache, extension)]
    return row.warn(text, *seen, subject=cache.path, steps=steps)


def _leftovers(facts: Facts, cache: Cache, envs: list[PythonEnv]) -> Iterator[str]:
    """Tell what nothing here loads any more: it is harmless, and takes space."""
    package = _PACKAGES.get(cache.kind, "")
    versions = {d.version for env in envs for d in env.distributions if d.name == package}
    times = [env.torch_time for env in envs if env.torch]
    cards, made_for = _cards(facts), _made_for(cache)
    other = {v: n for (v, _), n in made_for.items() if v and versions and v not in versions}
    foreign = {
        a: n for (_, a), n in made_for.items() if a and cards and cards.isdisjoint(_archs(a))
    }
    total = cache.count or len(cache.extensions)
    notes = []
    if other:
        here = ", ".join(sorted(versions))
        notes.append(
            f"Of {package} {few(sorted(other))}, while {here} is installed:"
            f" {sum(other.values())} of {total}."
        )
    if foreign:
        shown = few(
            [f"sm_{arch}" for arch in sorted({a for text in foreign for a in _archs(text)})]
        )
        here = ", ".join(f"sm_{card}" for card in sorted(cards))
        notes.append(
            f"For {shown}, while the cards are {here}: {sum(foreign.values())} of {total}."
        )
    # Triton's kernels tell their version; the keys of vLLM's and torch's graphs hide it.
    if not made_for and cache.newest is not None and times and cache.newest < min(times):
        notes.append(f"Older than torch: {total} of {total}.")
    if notes:
        yield from notes
        path = shlex.quote(cache.path)
        yield f"Nothing loads that; while no server runs, {path} can be deleted to free the space."


def _made_for(cache: Cache) -> Counter[tuple[str, str]]:
    """Count what tells it, by version and architectures (75_80)."""
    found: Counter[tuple[str, str]] = Counter()
    for made_for, number in cache.kernels.items():
        version, _, arch = made_for.partition(" sm_")
        found[version, arch] += number
    for extension in cache.extensions:
        version = extension.version or cache.version or ""
        found[version, extension.arch or "_".join(cache.archs)] += 1
    del found["", ""]
    return found


def _archs(text: str) -> set[str]:
    """Split 75_80_90a; 9.0 is 90."""
    return {part.replace(".", "") for part in text.split("_")}


def _cards(facts: Facts) -> set[str]:
    gpus = facts.nvml.data.gpus if facts.nvml.data else []
    told = (gpu.compute_capability for gpu in gpus)
    return {capability.replace(".", "") for capability in told if isinstance(capability, str)}


def _half_built(cache: Cache) -> Iterator[str]:
    if names := [e.name for e in cache.extensions if e.begun and e.locked is None]:
        yield f"Builds that ended before their library was made, to go on with: {few(names)}."


def _freeing(cache: Cache) -> Iterator[str]:
    if cache.aside:
        paths = " ".join(shlex.quote(f"{cache.path}/{name}") for name in cache.aside[:3])
        more = f" and {len(cache.aside) - 3} more" if cache.aside[3:] else ""
        yield f"Set aside earlier; once all works, free the space: rm -r {paths}{more}."


@check("ext-lock")
def ext_lock(facts: Facts, row: Row) -> Iterable[Finding]:
    """A process that finds a lock waits for ever, without a word."""
    found, processes = facts.ext_cache.need(), facts.processes.need()
    alive = [f"{tool.name} (pid {tool.pid})" for tool in processes.tools if tool.name in COMPILERS]
    seen_locks = [
        (cache, path, extension)
        for cache in found.caches
        for path, extension in locks(cache).items()
    ]
    for cache, path, extension in seen_locks:
        locked = extension.locked or 0
        age = found.time - locked
        who = f"; open in pid {extension.holder}" if extension.holder else ""
        seen = Evidence(path, f"{age} s old; compilers alive: {', '.join(alive) or 'none'}{who}")
        may_live = bool(alive) and not extension.all_seen
        if age <= _STALE_S or extension.holder or may_live:
            text = f"A build is running: its lock is {age / 60:.0f} min old."
            yield row.info(text, seen, subject=path)
        else:
            dead = "no process has it open" if extension.all_seen else "no compiler is alive"
            text = f"Its lock is {age / 60:.0f} min old and {dead}: loads wait for ever."
            steps = set_aside(cache, path, extension.lock_inode)
            yield row.fail(text, seen, subject=path, steps=steps)
    problems = [(cache.path, cache.problem) for cache in found.caches if cache.problem]
    if found.problem:
        problems.append((HOST, found.problem))
    for path, problem in problems:
        yield row.unknown(f"There may be a lock: {problem}.", subject=path)
    if not seen_locks and not problems:
        yield row.ok("No extension is locked.")


def locks(cache: Cache) -> dict[str, Extension]:
    """Return a cache's locked extensions by the paths of their locks."""
    return {
        f"{cache.path}/{extension.name}/lock": extension
        for extension in cache.extensions
        if extension.locked is not None
    }
