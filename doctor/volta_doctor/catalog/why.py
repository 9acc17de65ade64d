"""What texts tell: the tables in why/, read by `volta-doctor why`. README.md has their keys."""

from typing import Literal

import msgspec

from volta_doctor.findings import Confidence

Risk = Literal["none", "restart", "reboot", "rebuild", "reconfigure", "hardware"]


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that some tool prints, and what it says of the host.

    `pattern` is in RE2's syntax, without regard to case; a blank in it stands for any blanks and
    for a broken line. `says` and `subject` may name its groups in braces.
    """

    pattern: str
    says: str
    level: Literal["fail", "warn", "info"] = "fail"
    confidence: Confidence = Confidence.CERTAIN
    because: str = ""
    when: list[str] = []
    unless: list[str] = []
    contradicts: str = ""
    subject: str = ""
    source: str
    examples: list[str]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a cause is recognised; one that is no check of a host has its title and its fix here."""

    id: str
    relies: str
    messages: list[Message] = []
    title: str = ""
    hides: list[str] = []
    fix: str = ""
    risk: Risk = "none"
    source: str = ""
    volta_note: str = ""
    gpu: Literal["", "nvidia", "volta"] = ""


class Symptom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text that shows that something is wrong, and not what."""

    name: str
    patterns: list[str]
    means: str
    suspects: list[str] = []
    explained_by: list[str] = []
    bring: list[str]
    source: str
    examples: list[str]
