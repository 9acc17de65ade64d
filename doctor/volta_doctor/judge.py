"""Facts → findings: runs the checks, folds consequences under causes, ranks what is left."""

from collections.abc import Iterable, Sequence
from datetime import date

from msgspec import structs

from volta_doctor import verdict
from volta_doctor.catalog import Row
from volta_doctor.checks import CHECKS
from volta_doctor.checks.gpu import subject
from volta_doctor.checks.servers import ranks
from volta_doctor.facts.model import Facts, Missing, Section, absent
from volta_doctor.findings import HOST, Finding
from volta_doctor.folding import fold, rank
from volta_doctor.profile import SECTIONS as OF_PROFILE
from volta_doctor.profile import Profile
from volta_doctor.waivers import Waiver, waive


def sections_of(rows: Iterable[Row]) -> set[str]:
    """Return the sections to collect for these checks, the host's name and its profile."""
    of_rows = {section for row in rows for section in (*row.needs, *row.uses)}
    return of_rows | {*OF_PROFILE}


def judge(
    facts: Facts,
    rows: Iterable[Row],
    profile: Profile,
    waivers: Sequence[Waiver] = (),
    day: date = date.min,
) -> list[Finding]:
    """Return the findings of the given checks, rank 1 first; waivers are held against `day`."""
    facts = structs.replace(facts, expect=profile.expect)
    findings = [finding for row in rows for finding in examine(facts, row, profile)]
    return rank(fold(waive(findings, waivers, day), bearing(facts)))


def examine(facts: Facts, row: Row, profile: Profile) -> list[Finding]:
    """Run one check: skipped where it makes no sense, unknown where a need is not met."""
    if row.gpu and profile.gpu == "unknown":
        return [row.unknown(profile.reason)]
    if row.gpu and profile.gpu not in (row.gpu, "volta"):
        return [row.skip(profile.reason)]
    if row.active and facts.active == absent():
        return [row.skip("It loads the GPU, so it is made only with --active.")]
    for name in row.needs:
        section: Section[object] = getattr(facts, name)
        if section.not_here and profile.gpu in ("volta", "nvidia"):
            # Cards can be judged without a release; a host with neither gives nothing to judge.
            return [row.skip(section.error or "not on this host")]
        if not section.ok:
            return [row.unknown(section.error or "not collected")]
    nothing = "Nothing is recorded that could be judged."
    return verdict.of(row, lambda: CHECKS[row.id](facts, row), nothing)


def bearing(facts: Facts) -> dict[str, set[str]]:
    """Return, by subject, those whose troubles are its own too.

    A server has those of its host, its GPUs, its environment and its caches. What was built in
    these has the server's, whose variables steer the build, and a cache those of its environment.
    """
    found: dict[str, set[str]] = {}
    for server in facts.serve.data.servers if facts.serve.data else []:
        try:
            used = ranks(facts, server)
        except Missing:  # it may use any
            used = facts.nvml.data.gpus if facts.nvml.data else []
        found[server.name] = {HOST, *map(subject, used)}
    envs = facts.python_envs.data.envs if facts.python_envs.data else []
    caches = facts.ext_cache.data.caches if facts.ext_cache.data else []
    places = [(env.prefix, env.used_by) for env in envs]
    places += [(cache.path, cache.used_by) for cache in caches]
    places += [(f"{c.path}/{e.name}/lock", c.used_by) for c in caches for e in c.extensions]
    for path, used_by in places:
        for name in used_by:
            found.setdefault(name, set()).add(path)
        found.setdefault(path, set()).update(used_by)
    for cache in caches:
        of_cache = {env.prefix for env in envs if not set(env.used_by).isdisjoint(cache.used_by)}
        found[cache.path].update(of_cache)
    return found
