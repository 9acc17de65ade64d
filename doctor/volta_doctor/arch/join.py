"""The join: card x driver x CUDA x torch x extensions x libraries x flags, for each target.

The doctor's own checks judge the edges; here they are put in order, and the first that breaks is
told with the smallest change that mends it.
"""

from collections.abc import Sequence
from importlib.metadata import version

from volta_doctor.arch import edges, rebuild, rules, with_torch
from volta_doctor.arch.host import Host
from volta_doctor.arch.model import CodeFile, Scan
from volta_doctor.arch.report import SCHEMA, ArchReport, Break, JudgedFile, Outcome, TargetReport
from volta_doctor.arch.targets import facts_of
from volta_doctor.catalog import checks
from volta_doctor.checks.device_code import unused
from volta_doctor.facts.model import Facts, absent
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.findings import Finding, Status
from volta_doctor.judge import judge as run_checks
from volta_doctor.probe import Probe
from volta_doctor.profile import Profile

_WORST: tuple[Outcome, ...] = ("cannot run", "not known", "runs after JIT", "runs")
_CODES = {"cannot run": 2, "not known": 3}


def report(probe: Probe, scans: Sequence[Scan], host: Host, require: Sequence[str]) -> ArchReport:
    """Judge all targets. `require` are architectures (70) that every file has to have code for."""
    targets = [judge_target(probe, scan, host, require) for scan in scans]
    codes = map(_gate if require else _exit_code, targets)
    return ArchReport(
        schema=SCHEMA,
        tool=f"volta-doctor {version('volta-stack')}",
        cards=host.cards,
        driver=host.driver,
        require=list(require),
        exit_code=max(codes, key=(0, 1, 3, 2).index),
        targets=targets,
    )


def judge_target(probe: Probe, scan: Scan, host: Host, require: Sequence[str]) -> TargetReport:
    """Judge one target: its files by the rules, the whole by the doctor's checks."""
    facts = facts_of(probe, scan, host.facts)
    env = next(iter(facts.python_envs.need().envs), None)
    reasons = _reasons_unused(facts)
    owners = rebuild.Owners(probe, env)
    files = [
        _judge_file(file, host, owners, reasons.get(file.path, ""), require)
        for file in scan.files
        if file.code or file.problem
    ]
    findings = [f for f in _findings(facts, host, scan) if f.status not in (Status.OK, Status.SKIP)]
    return TargetReport(
        target=scan.target,
        kind=scan.kind,
        verdict=_verdict(files, findings, host, scan),
        first_break=_first_break(findings, scan, files, env, owners),
        findings=findings,
        files=files,
        looked_at=scan.looked_at,
        unread=scan.unread,
    )


def _judge_file(
    file: CodeFile, host: Host, owners: rebuild.Owners, why_unused: str, require: Sequence[str]
) -> JudgedFile:
    """Judge a file for the card that does worst with it."""
    judged = [
        (rules.judge(file.code, file.ptx_isa, card, host.driver), card) for card in host.cards
    ]
    verdict, card = min(judged, key=lambda pair: _WORST.index(pair[0].status))
    reason = verdict.reason if file.code else file.problem
    wanting = verdict.status in ("cannot run", "runs after JIT") and not why_unused
    return JudgedFile(
        file=file,
        verdict=verdict.status,
        reason=reason,
        card=card.name if len(host.cards) > 1 else "",
        rebuild=rebuild.line(file, card, owners) if wanting else "",
        unused=why_unused if verdict.status == "cannot run" else "",
        lacks=[arch for arch in require if arch not in file.code.sass],
    )


def _reasons_unused(facts: Facts) -> dict[str, str]:
    """Return why a card that cannot run a file need not, by its path."""
    envs = facts.python_envs.need().envs
    return {item.path: unused(item, envs) for item in facts.so_archs.need().objects}


def _findings(facts: Facts, host: Host, scan: Scan) -> list[Finding]:
    """Run the checks of all edges, as far as their facts were looked for; none without Volta."""
    if not any(card.is_volta for card in host.cards):
        return []
    table = edges.edges()
    ids = dict.fromkeys(edge.check for edge in table if scan.kind not in edge.skip)
    rows = [checks()[check_id] for check_id in ids]
    rows = [row for row in rows if all(getattr(facts, name) != absent() for name in row.needs)]
    if not facts.python_envs.need().searches:
        rows = [row for row in rows if row.id != "libcuda-dup"]
    reason = ", ".join(card.name for card in host.cards)
    return run_checks(facts, rows, Profile(name="arch", gpu="volta", reason=reason))


def _verdict(files: list[JudgedFile], findings: list[Finding], host: Host, scan: Scan) -> Outcome:
    """Return the verdict on the whole.

    On Volta the checks know best what each file is for; on other cards there are the files alone.
    """
    statuses = {finding.status for finding in findings if not finding.folded_under}
    # PTX in a file of its own is data, compiled when its program sees fit.
    counted = [f for f in files if f.file.kind != "ptx" or scan.kind == "file"]
    found = {file.verdict for file in counted if not file.unused}
    if Status.FAIL in statuses:
        return "cannot run"
    if Status.UNKNOWN in statuses:
        return "not known"
    if not all(card.is_volta for card in host.cards):
        if scan.unread:
            found.add("not known")
        return next((outcome for outcome in _WORST if outcome in found), "no device code")
    if not any(file.file.code for file in files):
        return "no device code"
    return "runs after JIT" if "runs after JIT" in found else "runs"


def _exit_code(target: TargetReport) -> int:
    """Return 2 where it cannot run, 3 where that is not known, 1 where a check warns, else 0."""
    warned = any(f.status is Status.WARN and not f.folded_under for f in target.findings)
    return _CODES.get(target.verdict, int(warned))


def _gate(target: TargetReport) -> int:
    """Return 2 where a file lacks what is required, 3 where one may, or where there is none."""
    if any(file.lacks and not file.file.problem for file in target.files):
        return 2
    doubtful = target.unread or any(file.lacks for file in target.files)
    return 3 if doubtful or not target.files else 0


def _first_break(
    findings: list[Finding],
    scan: Scan,
    files: list[JudgedFile],
    env: PythonEnv | None,
    owners: rebuild.Owners,
) -> Break | None:
    """Return the first edge that breaks, None where all hold."""
    broken = edges.in_order(findings)
    if not broken:
        return None
    first, *others = broken
    bad = [f for f in files if f.verdict == "cannot run" and not f.unused]
    edge = edges.edge_of(first, bool(bad) and all(_has_ptx(file.file) for file in bad))
    then = [f"{f.id}: {f.message}" for f in others if f.id not in edge.mends]
    builds = [file.rebuild for file in bad]
    if env and "{with_torch}" in edge.command:
        compiled = with_torch.compiled(scan.files, env, owners)
        built = f"is compiled against torch {env.torch}: build it anew"
        then += [f"{name} {built}" for name in compiled]
        then += with_torch.of_another_cuda(first, env)
        builds = [rebuild.line(f, rules.volta(), owners) for f in compiled.values()]
    change, commands = edges.fill(
        edge,
        {
            "pip": owners.pip,
            "seen": ", ".join(_seen(first, owners)),
            "pins": " ".join(seen.text for seen in first.evidence),
            "remove": " ".join(with_torch.in_its_way(first)) if scan.kind != "wheel" else "",
            "with_torch": "".join(f" {name}" for name in (with_torch.pinned(env) if env else [])),
            "rebuild": "\n".join(dict.fromkeys(filter(None, builds))),
        },
    )
    return Break(
        edge=edge.edge,
        check=first.id,
        found=first.message,
        change=change,
        commands=commands,
        then=then,
    )


def _seen(finding: Finding, owners: rebuild.Owners) -> list[str]:
    """Return what a finding is about, files by the package that they came with."""
    named = ((owners.of(seen.source), seen.text.split(" (")[0]) for seen in finding.evidence)
    return list(dict.fromkeys(f"{o.name} {o.version}" if o else text for o, text in named))


def _has_ptx(file: CodeFile) -> bool:
    """Say whether some driver compiles a file's PTX for Volta."""
    verdict = rules.judge(file.code, file.ptx_isa, rules.volta(), None)
    return verdict.status == "runs after JIT"
