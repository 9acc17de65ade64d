"""Facts → findings: runs the checks, folds consequences under causes, ranks what is left."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date

from msgspec import structs

from volta_doctor.catalog import Row, checks
from volta_doctor.checks import CHECKS
from volta_doctor.checks.gpu import subject
from volta_doctor.checks.servers import ranks
from volta_doctor.facts.model import Facts, Missing, Section, absent
from volta_doctor.findings import HOST, PROBLEMS, SEVERITY, Finding, Status
from volta_doctor.profile import SECTIONS as OF_PROFILE
from volta_doctor.profile import Profile
from volta_doctor.waivers import Waiver, waive

_FOUND = (Status.FAIL, Status.WARN, Status.INFO)


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
    try:
        found = CHECKS[row.id](facts, row)
        findings = [found] if isinstance(found, Finding) else list(found)
        return findings or [row.unknown("Nothing is recorded that could be judged.")]
    except Missing as reason:
        return [row.unknown(str(reason))]
    except Exception as error:  # a fault in one check must not hide the others' findings
        return [row.unknown(f"the check itself failed: {type(error).__name__}: {error}")]


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


def fold(
    findings: list[Finding],
    bears: Mapping[str, Collection[str]] = {},
    rows: Mapping[str, Row] | None = None,
) -> list[Finding]:
    """Put each consequence under its root cause, as the catalogue's `hides` and `blinds` say.

    `bears` are the subjects that bear on others, and `rows` those of the findings, the checks'
    where none are given. A waived finding hides nothing: its waiver speaks
    of itself alone.
    """
    rows = rows or checks()
    cause: dict[int, int] = {}

    def root(index: int) -> int:
        while index in cause:
            index = cause[index]
        return index

    found = [index for index, finding in enumerate(findings) if finding.status in _FOUND]
    by_id: dict[str, list[int]] = {}
    untold: dict[str, list[int]] = {}  # by subject
    for index, finding in enumerate(findings):
        if finding.status in PROBLEMS:
            by_id.setdefault(finding.id, []).append(index)
        if finding.status is Status.UNKNOWN:
            untold.setdefault(finding.subject, []).append(index)
    for above in found:
        row = rows[findings[above].id]
        hidden = {index for check_id in row.hides for index in by_id.get(check_id, ())}
        if row.blinds:
            own = findings[above].subject
            borne = [child for child, parents in bears.items() if own in parents]
            for name in {own, HOST, *borne}:
                hidden.update(untold.get(name, ()))
        for below in sorted(hidden):
            explained = explains(findings[above], findings[below], bears, rows)
            if explained and below not in cause and root(above) != below:
                cause[below] = above
    hides: dict[int, list[str]] = {}
    for below in cause:
        ids = hides.setdefault(root(below), [])
        if findings[below].id not in ids:
            ids.append(findings[below].id)
    return [
        structs.replace(
            finding,
            hides=hides.get(index, []),
            folded_under=findings[root(index)].id if index in cause else None,
        )
        for index, finding in enumerate(findings)
    ]


def explains(
    parent: Finding,
    child: Finding,
    bears: Mapping[str, Collection[str]] = {},
    rows: Mapping[str, Row] | None = None,
) -> bool:
    """Say whether `child` is to be read as a consequence of `parent`.

    What cannot be told of the whole host may be for one of its parts; but what is wrong with the
    host is not why one part of it alone cannot be read.
    """
    rows = rows or checks()
    row, needs = rows[parent.id], rows[child.id].needs
    bears_on = {child.subject, *bears.get(child.subject, ())}
    near = parent.subject in bears_on or child.subject == HOST
    blinded = child.status is Status.UNKNOWN and not set(row.blinds).isdisjoint(needs) and near
    hidden = child.id in row.hides and (near or parent.subject == HOST)
    return (
        parent.status in _FOUND
        and not parent.waived
        and child.status in PROBLEMS
        and (blinded or hidden)
        and SEVERITY.index(parent.status) <= SEVERITY.index(child.status)
    )


def rank(findings: list[Finding]) -> list[Finding]:
    """Number the findings: severity first, then root causes, those that explain most first.

    Waived problems come behind the others.
    """

    def weight(finding: Finding) -> tuple[float, bool, int]:
        severity = SEVERITY.index(finding.status)
        behind = PROBLEMS.index(Status.INFO) + 0.5 if finding.waived else severity
        return behind, finding.folded_under is not None, -len(finding.hides)

    ordered = sorted(findings, key=weight)
    return [structs.replace(finding, rank=number) for number, finding in enumerate(ordered, 1)]
