"""The join: card x driver x CUDA x torch x extensions x libraries x flags, for each target.

The doctor's own checks judge the edges; here they are put in order, and the first that breaks is
told with the smallest change that mends it.
"""

from collections.abc import Mapping, Sequence, Set
from importlib.metadata import version
from typing import NamedTuple

from volta_doctor.arch import edges, first_break, rebuild, rules
from volta_doctor.arch.host import Host
from volta_doctor.arch.model import CodeFile, Scan
from volta_doctor.arch.report import (
    SCHEMA,
    ArchReport,
    Gate,
    JudgedFile,
    Outcome,
    TargetReport,
)
from volta_doctor.arch.targets import facts_of
from volta_doctor.catalog import checks
from volta_doctor.checks.device_code import stub, unused
from volta_doctor.facts.model import Facts, absent
from volta_doctor.findings import Finding, Status
from volta_doctor.judge import judge as run_checks
from volta_doctor.probe import Probe
from volta_doctor.profile import Profile

_WORST: tuple[Outcome, ...] = ("cannot run", "not known", "runs after JIT", "runs")
_CODES = {"cannot run": 2, "not known": 3}
_LOOSE = "a kernel in a file of its own: its program picks one for the card"
_GATE_CODES: dict[Gate | None, int] = {"has it": 0, "lacks it": 2, "not known": 3}


def report(probe: Probe, scans: Sequence[Scan], host: Host, require: Sequence[str]) -> ArchReport:
    """Judge all targets. `require` are architectures (70) that every file has to have code for."""
    targets = [judge_target(probe, scan, host, require) for scan in scans]
    codes = [_GATE_CODES[t.required] if require else _exit_code(t) for t in targets]
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
    """Judge one target: its files by the rules, the whole by the doctor's checks.

    Not so for a gate, which asks only what is in the files.
    """
    if scan.unread and not scan.looked_at:
        return TargetReport(
            target=scan.target,
            kind=scan.kind,
            verdict="not known",
            required="not known" if require else None,
            files=[],
            looked_at=0,
            unread=scan.unread,
        )
    facts = facts_of(probe, scan, host.facts)
    env = next(iter(facts.python_envs.need().envs), None)
    owners = rebuild.Owners(probe, env)
    loose = {arch for file in scan.files if scan.is_loose(file) for arch in file.code.sass}
    judge = _Judge(scan, host, owners, _reasons_unused(facts), require, loose)
    files = [judge.file(file) for file in scan.files if file.code or file.problem]
    judged = _findings(facts, host, scan) if not require else []
    findings = [finding for finding in judged if finding.status not in (Status.OK, Status.SKIP)]
    return TargetReport(
        target=scan.target,
        kind=scan.kind,
        verdict=_verdict(files, judged, scan, all(card.is_volta for card in host.cards)),
        required=_gate(files, scan) if require else None,
        first_break=first_break.find(findings, scan, files, env, owners),
        findings=findings,
        files=files,
        looked_at=scan.looked_at,
        unread=scan.unread,
    )


class _Judge(NamedTuple):
    """What a file is judged by; `loose` is what all kernels in files of their own are for."""

    scan: Scan
    host: Host
    owners: rebuild.Owners
    unused: Mapping[str, str]
    require: Sequence[str]
    loose: Set[str]

    def file(self, file: CodeFile) -> JudgedFile:
        """Judge a file for the card that does worst with it."""
        cards, driver = self.host.cards, self.host.driver
        judged = [(rules.judge(file.code, file.ptx_isa, card, driver), card) for card in cards]
        verdict, card = min(judged, key=lambda pair: _WORST.index(pair[0].status))
        is_loose = self.scan.is_loose(file)
        why = self.unused.get(file.path, "") if card.is_volta else stub(file.path, file.code)
        unused = _LOOSE if is_loose else why
        wanting = verdict.status in ("cannot run", "runs after JIT") and not unused
        has = self.loose if is_loose else file.code.sass
        is_text = is_loose and file.kind == "ptx"
        return JudgedFile(
            file=file,
            verdict=verdict.status,
            reason=verdict.reason if file.code else file.problem,
            card=card.name if len(cards) > 1 else "",
            rebuild=rebuild.line(file, card, self.owners) if wanting else "",
            unused=unused if is_loose or verdict.status == "cannot run" else "",
            lacks=[arch for arch in self.require if arch not in has and not is_text],
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


def _verdict(
    files: list[JudgedFile], judged: list[Finding], scan: Scan, all_volta: bool
) -> Outcome:
    """Return the verdict on the whole.

    On Volta the checks know best what each file is for. Without them the files count, but for those
    that are for other cards or for a program to pick from, where there are others.
    """
    statuses = {finding.status for finding in judged if not finding.folded_under}
    counted = {f.verdict for f in files if not f.unused}
    by_files = not (judged and all_volta)
    if Status.FAIL in statuses:
        return "cannot run"
    if Status.UNKNOWN in statuses or (by_files and scan.unread and "cannot run" not in counted):
        return "not known"
    # PTX in a package is a text among others, such as its tests read.
    is_package = scan.kind in ("wheel", "venv")
    found = counted or {f.verdict for f in files if not (is_package and f.file.kind == "ptx")}
    if not found:
        return "no device code"
    if counted and by_files:
        return next(outcome for outcome in _WORST if outcome in counted)
    if "runs after JIT" in counted:
        return "runs after JIT"
    return next(outcome for outcome in reversed(_WORST) if outcome in found)


def _exit_code(target: TargetReport) -> int:
    """Return 2 where it cannot run, 3 where that is not known, 1 where a check warns, else 0."""
    warned = any(f.status is Status.WARN and not f.folded_under for f in target.findings)
    return _CODES.get(target.verdict, int(warned))


def _gate(files: list[JudgedFile], scan: Scan) -> Gate:
    """Say whether all files have what is required; not known where one may lack it, or none is."""
    if any(file.lacks and not file.file.problem for file in files):
        return "lacks it"
    is_none = all(scan.is_loose(file.file) and file.file.kind == "ptx" for file in files)
    return "not known" if scan.unread or is_none or any(f.lacks for f in files) else "has it"
