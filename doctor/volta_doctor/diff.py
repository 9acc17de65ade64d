"""What changed between two snapshots of a host: facts by section, then findings.

diff.yaml says which facts are noise, which are counters, and what a person calls them.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from volta_doctor.facts.model import Facts, Section, absent
from volta_doctor.facts.nvml import NvmlError
from volta_doctor.findings import HOST, PROBLEMS, SEVERITY, Finding
from volta_doctor.words import printable

_LONGEST = 100  # characters of one value


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """diff.yaml; the comments there say what each part is."""

    noise: set[str]
    counters: set[str]
    keys: dict[str, list[str]]
    names: dict[str, str]
    units: dict[str, tuple[int, str]]
    per_gpu: set[str]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of one fact.

    `where` are the words that lead to it (GPU GPU-1, ecc, mode); `old` and `new` are as in the
    snapshots, None for what is not there.
    """

    section: str
    kind: Literal["changed", "added", "removed", "rose", "fell", "unreadable", "readable"]
    where: list[str]
    old: Any = None
    new: Any = None
    unit: str = ""

    @property
    def text(self) -> str:
        """The change as a person reads it."""
        where = ": ".join([" ".join(self.where[:1]), " ".join(self.where[1:])]).strip(": ")
        if self.kind in ("added", "removed"):
            return f"{where}: {self.kind}" + _more(self.new if self.new is not None else self.old)
        if self.kind == "rose":
            return f"{where} rose by {self.new - self.old} ({self.old} -> {self.new})"
        if self.kind == "fell":
            return f"{where} began anew ({self.old} -> {self.new})"
        if self.kind == "unreadable":
            return f"could be read, and now cannot: {self.new}"
        if self.kind == "readable":
            return f"can be read now; before: {self.old}"
        return f"{where} {_shown(self.old, self.unit)} -> {_shown(self.new, self.unit)}"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One finding whose status is another now; None where there was, or is, none.

    `folded_under` is the root cause that explains a problem of now.
    """

    kind: Literal["new", "worse", "better", "mended", "gone"]
    id: str
    subject: str
    old: str | None
    new: str | None
    message: str
    folded_under: str | None = None

    @property
    def text(self) -> str:
        """The turn as a person reads it."""
        subject = "" if self.subject == HOST else f" [{self.subject}]"
        turned = f"{self.old or 'none'} -> {self.new or 'none'}"
        return printable(f"{self.id}{subject}: {turned}: {self.message}")


@cache
def table() -> Table:
    """Return diff.yaml."""
    import msgspec.yaml

    return msgspec.yaml.decode((files("volta_doctor") / "diff.yaml").read_bytes(), type=Table)


def changes(old: Facts, new: Facts) -> list[Change]:
    """Return what changed, section by section; sections that either side lacks are left out."""
    found: list[Change] = []
    not_there: Section[Any] = absent()
    for name in Facts.__struct_fields__:
        before, after = getattr(old, name), getattr(new, name)
        if not isinstance(before, Section) or not isinstance(after, Section):
            continue
        if not_there.error in (before.error, after.error):
            continue
        if before.data is None and after.data is None:
            continue
        if after.data is None:
            found.append(Change(section=name, kind="unreadable", where=[], new=after.error))
        elif before.data is None:
            found.append(Change(section=name, kind="readable", where=[], old=before.error))
        else:
            found += _structs(name, [], before.data, after.data)
    return found


def turns(old: Sequence[Finding], new: Sequence[Finding]) -> list[Turn]:
    """Return the findings whose status changed for better or worse, the worst of them first."""
    before = {(f.id, f.subject): f for f in old}
    after = {(f.id, f.subject): f for f in new}
    found = []
    for key in dict.fromkeys([*after, *before]):
        was, now = before.get(key), after.get(key)
        if kind := _turn(was, now):
            told = now or was
            found.append(
                Turn(
                    kind=kind,
                    id=key[0],
                    subject=key[1],
                    old=was.status.value if was else None,
                    new=now.status.value if now else None,
                    message=told.message if told else "",
                    folded_under=now.folded_under if now else None,
                )
            )
    order = {kind: n for n, kind in enumerate(("new", "worse", "better", "mended", "gone"))}
    return sorted(found, key=lambda turn: order[turn.kind])


def _turn(was: Finding | None, now: Finding | None) -> Any:
    bad_before = was is not None and was.status in PROBLEMS
    bad_now = now is not None and now.status in PROBLEMS
    if bad_now and not bad_before:
        return "new"
    if bad_before and not bad_now:
        return "mended" if now else "gone"
    if was and now and bad_now and was.status is not now.status:
        return "worse" if SEVERITY.index(now.status) < SEVERITY.index(was.status) else "better"
    return None


def _structs(section: str, where: list[str], old: Any, new: Any) -> Iterator[Change]:
    kind = type(new).__name__
    if kind in table().noise:
        return
    for name in new.__struct_fields__:
        field = f"{kind}.{name}"
        if field in table().noise:
            continue
        before, after = getattr(old, name), getattr(new, name)
        words = [*where, table().names.get(field, name.replace("_", " "))]
        if field in table().counters:
            yield from _counters(section, words, before, after)
        else:
            yield from _values(section, words, before, after, field)


def _values(
    section: str, where: list[str], old: Any, new: Any, field: str = ""
) -> Iterator[Change]:
    if old == new:
        return
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        if not isinstance(old, NvmlError):
            yield from _structs(section, where, old, new)
            return
    elif isinstance(old, list) and isinstance(new, list):
        yield from _lists(section, where, old, new, field)
        return
    elif isinstance(old, dict) and isinstance(new, dict):
        yield from _keyed(section, where, old, new)
        return
    suffix, (scale, unit) = next(
        ((s, u) for s, u in table().units.items() if field.endswith(s)), ("", (1, ""))
    )
    words = [*where[:-1], where[-1].removesuffix(suffix.replace("_", " "))]
    yield Change(
        section=section,
        kind="changed",
        where=words,
        old=_scaled(old, scale),
        new=_scaled(new, scale),
        unit=unit,
    )


def _lists(
    section: str, where: list[str], old: list[Any], new: list[Any], field: str
) -> Iterator[Change]:
    items = [*old, *new]
    if all(isinstance(item, msgspec.Struct) for item in items):
        struct = type(items[0]).__name__
        label = table().names.get(struct, where[-1])
        before, after = (
            {f"{label} {key}": item for key, item in zip(_keys(side, struct), side, strict=True)}
            for side in (old, new)
        )
        yield from _keyed(section, where[:-1], before, after)
    elif field not in table().per_gpu and all(isinstance(item, str) for item in items):
        for item in items:
            if (item in old) != (item in new):
                kind: Literal["added", "removed"] = "added" if item in new else "removed"
                yield Change(section=section, kind=kind, where=[*where, item])
    elif field in table().per_gpu:
        yield from _per_gpu(section, where, old, new)
    else:
        yield Change(section=section, kind="changed", where=where, old=old, new=new)


def _per_gpu(section: str, where: list[str], old: list[Any], new: list[Any]) -> Iterator[Change]:
    """Compare what is told of each GPU, or of each pair; what is not told has not changed."""
    untold = (None, "?")
    for gpu, (before, after) in enumerate(zip(old, new, strict=False)):
        rows = isinstance(before, list) and isinstance(after, list)
        pairs = list(zip(before, after, strict=False))[gpu + 1 :] if rows else [(before, after)]
        for other, (was, now) in enumerate(pairs, gpu + 1):
            if was != now and was not in untold and now not in untold:
                of = f" of GPUs {gpu} and {other}" if rows else f" of GPU {gpu}"
                words = [*where[:-1], where[-1] + of]
                yield Change(section=section, kind="changed", where=words, old=was, new=now)


def _keyed(
    section: str, where: list[str], old: dict[str, Any], new: dict[str, Any]
) -> Iterator[Change]:
    for key in dict.fromkeys([*old, *new]):
        words = [*where, key]
        if key not in old:
            yield Change(section=section, kind="added", where=words, new=_plain(new[key]))
        elif key not in new:
            yield Change(section=section, kind="removed", where=words, old=_plain(old[key]))
        else:
            yield from _values(section, words, old[key], new[key])


def _counters(section: str, where: list[str], old: Any, new: Any) -> Iterator[Change]:
    before, after = (len(side) if isinstance(side, list) else side for side in (old, new))
    if not isinstance(before, int) or not isinstance(after, int):
        if type(before) is not type(after):
            yield Change(
                section=section, kind="changed", where=where, old=_plain(before), new=_plain(after)
            )
        return
    if before != after:
        kind: Literal["rose", "fell"] = "rose" if after > before else "fell"
        yield Change(section=section, kind=kind, where=where, old=before, new=after)


def _keys(items: list[Any], struct: str) -> list[str]:
    """Return what tells the items apart: the fields of the table where they do, else the place."""
    fields = table().keys.get(struct, [])
    known = [[getattr(item, field) for field in fields] for item in items]
    # A lost GPU does not tell its UUID.
    keys = [str(n) if None in key else " ".join(map(str, key)) for n, key in enumerate(known)]
    return keys if fields and len(set(keys)) == len(keys) else [str(n) for n in range(len(items))]


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _scaled(value: Any, scale: int) -> Any:
    if scale != 1 and isinstance(value, (int, float)) and not isinstance(value, bool):
        return round(value / scale, 2)
    return _plain(value)


def _more(value: Any) -> str:
    told = value if isinstance(value, dict) else {}
    if refused := told.get("handle_error"):
        return f", but cannot be opened: {_shown(refused)}"
    return f" ({told['version']})" if told.get("version") else ""


def _shown(value: Any, unit: str = "") -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, dict) and set(value) == {"error", "text"}:
        return f"error {value['error']} ({value['text']})"
    if unit == "time" and isinstance(value, (int, float)):
        return datetime.fromtimestamp(value, timezone.utc).isoformat(sep=" ", timespec="seconds")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = " ".join(str(value).split())
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return f"{text} {unit}".rstrip() or "nothing"
