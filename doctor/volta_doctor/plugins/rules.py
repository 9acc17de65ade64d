"""A site's rules over facts: one YAML file is one row, with conditions in place of a function.

Conditions are Jinja expressions in a sandbox: they read facts and compute, and reach nothing else.
A fact that is not known makes the verdict unknown, whatever the condition does with it, unless it
asks first (`is defined`, `default()`).
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec
import msgspec.yaml
from jinja2 import StrictUndefined, TemplateError, UndefinedError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from volta_doctor.catalog import Row, validate
from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import NvmlError
from volta_doctor.findings import HOST, Evidence, Finding

_Name = Literal["fail", "warn", "info", "ok"]
_PROBLEMS: tuple[_Name, ...] = ("fail", "warn", "info")


class Level(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a level holds, and what is said then; both see the facts, `say` as a template."""

    say: str
    condition: str = msgspec.field(name="if", default="")


class Rule(Row, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row with its judgement; docs/plugins.md tells what a key means."""

    when: dict[_Name, Level]
    each: dict[str, str] = msgspec.field(default_factory=dict)
    subject: str = ""
    rule: dict[_Name, str] = msgspec.field(default_factory=dict)
    hides: list[str] = msgspec.field(default_factory=list)
    source: str = "the site"
    area: str = "site"
    file: str = ""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja over facts: what is not known, or an error that NVML gave instead, is undefined."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self._known(super().getattr(obj, attribute), attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        return self._known(super().getitem(obj, argument), argument)

    def _known(self, found: Any, name: Any) -> Any:
        if found is None:
            return self.undefined(f"{name} is not known")
        if isinstance(found, NvmlError):
            return self.undefined(f"{name}: NVML answers error {found.error} ({found.text})")
        return found


_ENV = _Sandbox(undefined=StrictUndefined)


def read(path: Path) -> Rule:
    """Read a rule. Raises ValueError with the key at fault, OSError."""
    try:
        rule = msgspec.yaml.decode(path.read_bytes(), type=Rule)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    validate(rule)
    for level, part in rule.when.items():
        if bool(part.condition) == (level == "ok"):
            raise ValueError(f"when.{level}: `if` belongs to fail, warn and info, and only there")
    if not set(rule.when) & {*_PROBLEMS}:
        raise ValueError("when: no fail, warn or info")
    if len(rule.each) > 1:
        raise ValueError("each: one name at most")
    sections = {*rule.needs, *rule.uses}
    for key, text, seen in _expressions(rule):
        try:
            (_template if key.endswith(("say", "subject")) else _expression)(text)
            source = text if key.endswith(("say", "subject")) else f"{{% if {text} %}}{{% endif %}}"
            names = meta.find_undeclared_variables(_ENV.parse(source))
        except TemplateError as error:
            raise ValueError(f"{key}: {error}") from error
        if strange := sorted(names - sections - seen):
            raise ValueError(f"{key}: {strange[0]} is neither in needs nor in uses")
    told = {level: part.condition for level, part in rule.when.items() if part.condition}
    return msgspec.structs.replace(
        rule, rule=told | {"ok": "otherwise"} | rule.rule, file=str(path)
    )


def judge(facts: Facts, row: Row) -> Iterator[Finding]:
    """Judge a rule on the host, or on each thing that it names."""
    assert isinstance(row, Rule)
    known = {name: _section(facts, name) for name in (*row.needs, *row.uses)}
    if not row.each:
        yield _judge_one(row, known, HOST)
        return
    ((name, expression),) = row.each.items()
    try:
        items = list(_expression(expression)(known))
    except Exception as error:
        yield row.unknown(_why(row, f"each.{name}", error))
        return
    for index, item in enumerate(items):
        yield _judge_one(row, known | {name: item}, _subject_of(item, f"{name} {index}"))
    if not items:
        verdict = row.unknown if row.gpu else row.skip
        yield verdict(f"There is no {name} to judge ({expression} is empty).")


def _judge_one(row: Rule, known: dict[str, Any], subject: str) -> Finding:
    key = "subject"
    try:
        if row.subject:
            subject = _template(row.subject).render(known)
        for level in _PROBLEMS:
            part = row.when.get(level)
            key = f"when.{level}.if"
            if part and _expression(part.condition)(known):
                key = f"when.{level}.say"
                seen = Evidence(row.file, f"{level} if {part.condition}")
                said = _template(part.say).render(known)
                finding: Finding = getattr(row, level)(said, seen, subject=subject)
                return finding
        key = "when.ok.say"
        said = _template(row.when["ok"].say).render(known) if "ok" in row.when else row.title
    except Exception as error:
        return row.unknown(_why(row, key, error), subject=subject)
    return row.ok(said, subject=subject)


def _expressions(rule: Rule) -> Iterator[tuple[str, str, set[str]]]:
    """Give every expression and template with its key and the names it sees beside sections."""
    for name, text in rule.each.items():
        yield f"each.{name}", text, set()
    names = set(rule.each)
    if rule.subject:
        yield "subject", rule.subject, names
    for level, part in rule.when.items():
        if part.condition:
            yield f"when.{level}.if", part.condition, names
        yield f"when.{level}.say", part.say, names


def _section(facts: Facts, name: str) -> Any:
    section = getattr(facts, name)
    return section.data if section.ok else _ENV.undefined(f"{name}: {section.error}")


def _subject_of(item: Any, otherwise: str) -> str:
    uuid = getattr(item, "uuid", None)
    return uuid if isinstance(uuid, str) else otherwise


def _why(row: Rule, key: str, error: Exception) -> str:
    if isinstance(error, UndefinedError):
        return f"{error} ({row.file}, {key})"
    return f"{row.file}, {key}: {type(error).__name__}: {error}"


@cache
def _expression(text: str) -> Any:
    compiled = _ENV.compile_expression(text, undefined_to_none=False)
    return lambda known: compiled(**known)


@cache
def _template(text: str) -> Any:
    return _ENV.from_string(text)
