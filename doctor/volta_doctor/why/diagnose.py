"""From a case to findings: what the texts say, what the facts in them say, and what is missing."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from msgspec import UNSET, structs

from volta_doctor.catalog import Row, checks
from volta_doctor.catalog.why import UNDETERMINED, Symptom, diagnoses, rows
from volta_doctor.findings import (
    HOST,
    PROBLEMS,
    SEVERITY,
    Confidence,
    Finding,
    Remedy,
    Status,
)
from volta_doctor.folding import fold
from volta_doctor.judge import bearing, examine
from volta_doctor.profile import Profile
from volta_doctor.why import last_resort, messages, rules
from volta_doctor.why.acquit import acquitted
from volta_doctor.why.case import Case, Hit, Said
from volta_doctor.why.conditions import holds
from volta_doctor.words import few

_BROKEN = (Status.FAIL, Status.WARN)
_FOUND = (*_BROKEN, Status.INFO)
_CONFIDENCE = tuple(Confidence)
_MOST_EVIDENCE = 8
_MOST_SUSPECTS = 6  # the likeliest come first
_SAYS_SO = "the text says so itself"
_FACTS_DECIDE = "the facts in the text decide it"
_NO_RULE = "the line is an error, and no rule knows it"
_ANYWHERE = (1 << 30, 0)  # behind all that stands somewhere


class Weighed(NamedTuple):
    """A finding, whether an error in the text is explained by it, and where the text shows it."""

    finding: Finding
    explains_error: bool
    order: tuple[int, int] = _ANYWHERE


def diagnose(
    case: Case, saved: Sequence[Finding] = (), host: Profile | None = None
) -> list[Finding]:
    """Return what is wrong, rank 1 first: problems, then what was looked at and is in order.

    `saved` are the findings of reports. With the profile of a `host`, whose facts are all there,
    every check is made, and what cannot be told of it is told.
    """
    messages.look(case)
    found = [*_from_messages(case), *_from_rules(case), *from_facts(case)]
    found += [Weighed(finding, False) for finding in saved]
    if host:
        found += [
            Weighed(finding, False)
            for row in checks().values()
            for finding in examine(case.facts, row, host)
        ]
    told = list(_with_symptoms(case, _one_each(found)))
    if not any(weighed.finding.status in PROBLEMS for weighed in told):
        told += _from_unknown_error(case)
    return _rank(told, case)


def _from_messages(case: Case) -> Iterator[Weighed]:
    known = rows()
    for said in case.said:
        row, hit = known[said.check_id], said.hit
        message = said.message.says.format_map(hit.groups)
        subject = said.message.subject.format_map(hit.groups) or HOST
        make = {"fail": row.fail, "warn": row.warn, "info": row.info}[said.message.level]
        finding = make(message, *hit.evidence, subject=subject, count=hit.times)
        yield Weighed(_sure(finding, said), True, hit.order)


def _sure(finding: Finding, said: Said) -> Finding:
    """Put to a finding how sure it is, and which advice in the text it contradicts."""
    message = said.message
    because = message.because or _SAYS_SO
    against = [message.contradicts.format_map(said.hit.groups)] if message.contradicts else UNSET
    return structs.replace(
        finding, confidence=message.confidence, because=because, contradicts=against
    )


def _from_rules(case: Case) -> Iterator[Weighed]:
    known = rows()
    for check_id, functions in rules.load().items():
        for function in functions:
            for finding in function(case, known[check_id]):
                if finding.confidence is UNSET:
                    finding = structs.replace(
                        finding, confidence=Confidence.CERTAIN, because=_FACTS_DECIDE
                    )
                yield Weighed(finding, True, _order(case, finding))


def from_facts(case: Case) -> Iterator[Weighed]:
    """Judge the facts in the texts as those of a host; what they do not tell is left out.

    So is what is merely worth knowing of a host: it broke nothing.
    """
    judged = {check_id for part in case.parts for check_id in part.judges}
    known = rows()
    for check_id in sorted(judged & checks().keys()):
        row, entry = known[check_id], diagnoses().get(check_id)
        if entry and not all(holds(case, condition) for condition in entry.judged_when):
            continue
        for finding in acquitted(case, examine(case.facts, row, case.profile)):
            if entry and entry.upkeep and finding.status is Status.WARN:
                continue
            logged = "kernel_log" in row.needs  # some lines of it are no clean log
            wanted = Status.INFO if logged else Status.OK
            if finding.status in (*_BROKEN, wanted):
                finding = _with_places(case, row, finding)
                yield Weighed(finding, logged, _order(case, finding))


def _with_places(case: Case, row: Row, finding: Finding) -> Finding:
    """Replace what a check saw on a host by the lines of the text that told it."""
    words = "\n".join([finding.message, finding.subject, *(e.text for e in finding.evidence)])
    of_row = [seen for seen in case.seen if seen.section in (*row.needs, *row.uses)]
    if finding.subject != HOST:
        own = case.names(finding.subject)
        of_row = [seen for seen in of_row if seen.subject in own] or of_row
    told = [seen.evidence for seen in of_row if seen.value and seen.value in words]
    places = list(dict.fromkeys(told or [seen.evidence for seen in of_row]))[:_MOST_EVIDENCE]
    assumed = case.card == "unknown" and row.gpu == "volta"
    return structs.replace(
        finding,
        evidence=places or finding.evidence,
        confidence=Confidence.LIKELY if assumed else Confidence.CERTAIN,
        because=rules.NO_CARD if assumed else _FACTS_DECIDE,
    )


def _one_each(found: Iterable[Weighed]) -> list[Weighed]:
    """Put together what several messages, rules and facts say of one thing and one subject."""
    groups: dict[tuple[str, str], list[Weighed]] = {}
    for weighed in found:
        groups.setdefault((weighed.finding.id, weighed.finding.subject), []).append(weighed)
    for (name, subject), group in list(groups.items()):
        if subject == HOST and (of_part := _of_part(name, group, groups)):
            of_part += groups.pop((name, HOST))
    return [_joined(group) for group in groups.values()]


def _of_part(
    name: str, group: list[Weighed], groups: dict[tuple[str, str], list[Weighed]]
) -> list[Weighed] | None:
    """Return what says the same, by the same lines, of one part of the host."""
    shown = {seen for weighed in group for seen in weighed.finding.evidence}
    for (other, subject), found in groups.items():
        seen = {seen for weighed in found for seen in weighed.finding.evidence}
        if other == name and subject != HOST and seen & shown:
            return found
    return None


def _joined(group: list[Weighed]) -> Weighed:
    group.sort(key=lambda w: (_severity(w.finding), _doubt(w.finding), w.order))
    first = group[0].finding
    same = [w.finding for w in group if w.finding.status in _FOUND or w is group[0]]
    evidence = list(dict.fromkeys(e for finding in same for e in finding.evidence))
    against = [text for finding in same for text in finding.contradicts or ()]
    finding = structs.replace(
        first,
        subject=next((f.subject for f in same if f.subject != HOST), HOST),
        evidence=evidence[:_MOST_EVIDENCE],
        contradicts=list(dict.fromkeys(against)) or UNSET,
    )
    explains = any(weighed.explains_error for weighed in group)
    return Weighed(finding, explains, min(weighed.order for weighed in group))


def _with_symptoms(case: Case, found: list[Weighed]) -> Iterator[Weighed]:
    """Give each symptom to what explains it, else ask for the evidence that would decide."""
    for symptom, hit in case.symptoms.values():
        problems = {w.finding.id for w in found if w.finding.status in _BROKEN}
        named = [suspect for suspect in symptom.suspects if suspect in problems]
        if named:
            found = [_explaining(w, hit) if w.finding.id == named[0] else w for w in found]
        elif problems.isdisjoint(symptom.explained_by):
            yield Weighed(_undetermined(symptom, hit), True, hit.order)
    yield from found


def _explaining(weighed: Weighed, hit: Hit) -> Weighed:
    finding = weighed.finding
    known = finding.consequences or []
    further = [seen for seen in hit.evidence if seen not in (*finding.evidence, *known)]
    consequences = [*known, *further][:_MOST_EVIDENCE] or UNSET
    finding = structs.replace(finding, consequences=consequences)
    return Weighed(finding, True, min(weighed.order, hit.order))


def _from_unknown_error(case: Case) -> Iterator[Weighed]:
    if unknown := last_resort.unknown_error(case):
        symptom, hit = unknown
        finding = structs.replace(_undetermined(symptom, hit), because=_NO_RULE)
        yield Weighed(finding, True, hit.order)


def _undetermined(symptom: Symptom, hit: Hit) -> Finding:
    causes = few(symptom.suspects, _MOST_SUSPECTS)
    which = f" It may be {causes}: the text does not decide." if causes else ""
    finding = UNDETERMINED.unknown(
        f"{symptom.means[0].upper()}{symptom.means[1:]}.{which}", *hit.evidence
    )
    return structs.replace(
        finding,
        subject=symptom.name,
        remedy=Remedy(f"Bring {'; '.join(symptom.bring)}.", "none"),
        missing=symptom.bring,
        confidence=Confidence.POSSIBLE,
        because="this message has several causes, and nothing else in the text tells them apart",
    )


def _rank(found: list[Weighed], case: Case) -> list[Finding]:
    findings = [weighed.finding for weighed in found]
    sites_own = {f.id: _row_of(f) for f in findings}  # of a plugin, in a saved report
    folded = fold(findings, bearing(case.facts), sites_own | rows())

    def weight(pair: tuple[Weighed, Finding]) -> tuple[object, ...]:
        weighed, finding = pair
        aside = not weighed.explains_error  # weighs as much as a doubt
        return (
            _severity(finding),
            finding.folded_under is not None,
            _doubt(finding) + aside,
            aside,
            -len(finding.hides),
            weighed.order,
        )

    ordered = sorted(zip(found, folded, strict=True), key=weight)
    return [structs.replace(f, rank=number) for number, (_, f) in enumerate(ordered, 1)]


def _row_of(finding: Finding) -> Row:
    """Return all that a finding tells of its check."""
    return Row(
        id=finding.id,
        area=finding.area,
        title=finding.title,
        needs=[],
        rule={},
        hides=[],
        fix=finding.remedy.fix,
        risk="none",
        source="a saved report",
    )


def _severity(finding: Finding) -> int:
    return SEVERITY.index(finding.status)


def _doubt(finding: Finding) -> int:
    return _CONFIDENCE.index(finding.confidence) if finding.confidence else 0


def _order(case: Case, finding: Finding) -> tuple[int, int]:
    """Return where the case first shows a finding."""
    names = [text.name for text in case.texts]
    places = [
        (names.index(seen.source), seen.line or 0)
        for seen in finding.evidence
        if seen.source in names
    ]
    return min(places, default=_ANYWHERE)
