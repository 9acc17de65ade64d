"""Waivers: problems that a site has decided to bear with, for a reason and until a day.

A file is a YAML list; docs/waivers.md shows one.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import date
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import structs

from volta_doctor import files
from volta_doctor.findings import PROBLEMS, Finding, Waived

_SITE = Path("/etc/volta-doctor/waivers.yaml")
_OF_USER = "volta-doctor/waivers.yaml"  # under the user's configuration directory

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a file.

    `subject` is a shell pattern; without it the waiver is for every subject. `expires` is the last
    day on which it holds. With a `count` it holds only while the finding's count is no greater.
    """

    id: str
    reason: _Text
    expires: date
    subject: _Text = "*"
    by: str = ""
    count: Annotated[int, msgspec.Meta(ge=0)] | None = None


class Waiver(Entry, frozen=True, kw_only=True):
    """An entry and where it stands (`file, line 3`)."""

    at: str

    def matches(self, finding: Finding) -> bool:
        """Say whether this finding is a problem that the waiver speaks of."""
        return (
            finding.id == self.id
            and finding.status in PROBLEMS
            and fnmatchcase(finding.subject, self.subject)
        )

    def outgrown(self, finding: Finding) -> bool:
        """Say whether it has got worse since, or cannot show that it has not."""
        return self.count is not None and (finding.count is None or finding.count > self.count)

    def holds(self, finding: Finding, day: date) -> bool:
        """Say whether it waives this finding on that day."""
        return self.matches(finding) and day <= self.expires and not self.outgrown(finding)


class WaiversError(ValueError):
    """A file of waivers that cannot be read; the message names file, entry and field."""


def default_files(env: Mapping[str, str]) -> list[Path]:
    """Return the files that are read unasked, as far as they exist: the site's, the user's."""
    config = env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/root")) / ".config"
    return [path for path in (_SITE, Path(config) / _OF_USER) if os.path.lexists(path)]


def load(path: Path, ids: Collection[str]) -> list[Waiver]:
    """Read a file of waivers; `ids` are the checks that there are. Raises WaiversError."""
    import yaml

    try:
        text = files.read(path).decode()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        entries = yaml.safe_load(text)
    except OSError as error:
        raise WaiversError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: UTF-8, dates
        raise WaiversError(f"{path}: {' '.join(str(error).split())}") from error
    if node is None:
        return []
    if not isinstance(entries, list):
        raise WaiversError(f"{path}: not a list of waivers; each entry begins with `- id: …`")
    lines = [child.start_mark.line + 1 for child in node.value]
    return [
        _entry(raw, f"{path}, line {line}", ids) for raw, line in zip(entries, lines, strict=True)
    ]


def _entry(raw: Any, at: str, ids: Collection[str]) -> Waiver:
    try:
        entry = msgspec.convert(raw, Entry)
    except msgspec.ValidationError as error:
        name = raw.get("id", "") if isinstance(raw, dict) else ""
        raise WaiversError(f"{at}: waiver {name}: {error}".replace(" : ", ": ")) from error
    if entry.id not in ids:
        from volta_doctor.catalog import nearest

        raise WaiversError(f"{at}: field id: no check {entry.id!r}{nearest(entry.id, ids)}")
    return Waiver(**structs.asdict(entry), at=at)


def waive(findings: Sequence[Finding], waivers: Sequence[Waiver], day: date) -> list[Finding]:
    """Mark the findings that a waiver speaks of on that day."""

    def marked(finding: Finding) -> Finding:
        waiver = next((w for w in waivers if w.holds(finding, day)), None)
        if waiver is None:
            return finding
        waived = Waived(reason=waiver.reason, expires=waiver.expires.isoformat(), by=waiver.by)
        return structs.replace(finding, waived=waived)

    return [marked(finding) for finding in findings]


def notes(findings: Sequence[Finding], waivers: Sequence[Waiver], day: date) -> list[str]:
    """Say which waivers of the checks that were made no longer waive, and why."""
    judged = {finding.id for finding in findings}
    said: list[str] = []
    for waiver in waivers:
        if waiver.id not in judged:
            continue
        head = f"{waiver.at}: the waiver of {waiver.id} [{waiver.subject}]"
        found = [finding for finding in findings if waiver.matches(finding)]
        if day > waiver.expires:
            said.append(f"{head} expired on {waiver.expires}: {waiver.reason}")
        elif not found:
            said.append(f"{head} matches no finding: remove it, or mend its subject")
        for finding in found:
            if day <= waiver.expires and waiver.outgrown(finding):
                now = "is not counted" if finding.count is None else f"is {finding.count} now"
                said.append(
                    f"{head} was for a count of {waiver.count}, which {now} on {finding.subject}:"
                    " it no longer holds"
                )
    return said
