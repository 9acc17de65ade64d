"""What readers find in texts: partial facts, where they stand, and which checks they suffice for.

The sections are those of a snapshot; what a text does not say is left at its default.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from volta_doctor.facts.model import SECTIONS, Facts, Section
from volta_doctor.facts.pci import bus_id
from volta_doctor.findings import Evidence


class Seen(NamedTuple):
    """A line that a section of facts was read from, and the words by which findings speak of it.

    `subject` is whom it is about (GPU 0), empty for the host.
    """

    section: str
    value: str
    evidence: Evidence
    subject: str = ""


class Config(NamedTuple):
    """A JSON file of a checkpoint: config.json, hf_quant_config.json, an index; `name` if known."""

    name: str
    content: dict[str, Any]
    evidence: Evidence


class Listed(NamedTuple):
    """A file in a listing: its name and its bytes, as exact as the listing."""

    name: str
    bytes: int
    evidence: Evidence


class Part(NamedTuple):
    """What one reader found in one place.

    `judges` names the checks whose rules these facts suffice for, if the others' are there too: a
    text that shows one GPU does not show that the host has no other. `cards` are the names of GPUs
    as they stand there.
    """

    facts: Facts = Facts()
    judges: Collection[str] = ()
    seen: Collection[Seen] = ()
    cards: Collection[str] = ()
    configs: Collection[Config] = ()
    listed: Collection[Listed] = ()


def section(data: Any) -> Section[Any]:
    """Return a section that holds these facts."""
    return Section(ok=True, data=data)


def merged(parts: Iterable[Part]) -> Facts:
    """Put the facts of all parts together; of two values the first holds."""
    found: dict[str, Any] = {}
    for part in parts:
        for name in SECTIONS:
            theirs: Section[Any] = getattr(part.facts, name)
            if theirs.data is None:
                continue
            ours = found.get(name)
            data = _merge(ours.data, theirs.data) if ours else theirs.data
            found[name] = section(data)
    return Facts(**found)


# By which field the items of a list are told apart, the first that both have.
_KEYS = (
    "uuid", "subject", "prefix", "path", "bus_id", "pci.bus_id", "index", "name", "server", "pid",
)  # fmt: skip


def _merge(ours: Any, theirs: Any) -> Any:
    if isinstance(ours, msgspec.Struct) and type(ours) is type(theirs):
        fields = {}
        for field in msgspec.structs.fields(type(ours)):
            mine, yours = getattr(ours, field.name), getattr(theirs, field.name)
            if mine == field.default or _get(ours, field.name) is None:
                fields[field.name] = yours
            else:
                fields[field.name] = mine if yours == field.default else _merge(mine, yours)
        return msgspec.structs.replace(ours, **fields)
    if isinstance(ours, list) and isinstance(theirs, list):
        is_matrix = any(isinstance(item, list) for item in ours)
        return ours if is_matrix else _merge_lists(ours, theirs)
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return {**theirs, **ours}
    return theirs if _is_nothing(ours) else ours


def _merge_lists(ours: list[Any], theirs: list[Any]) -> list[Any]:
    found = list(ours)
    places: dict[object, list[int]] = {}  # so that logs of any length can be put together
    for number, item in enumerate(found):
        for mark in _marks(item):
            places.setdefault(mark, []).append(number)
    for item in theirs:
        near = sorted({number for mark in _marks(item) for number in places.get(mark, ())})
        same = next((number for number in near if _is_same(found[number], item)), None)
        if same is None:
            found.append(item)
        else:
            found[same] = _merge(found[same], item)
    return found


def _marks(item: Any) -> list[object]:
    """Return what two items that are the same have in common."""
    marks = [(key, value) for key in _KEYS if not _is_nothing(value := _get(item, key))]
    return [*marks] or [repr(item)]


def _is_same(one: Any, other: Any) -> bool:
    if not isinstance(one, msgspec.Struct):
        return bool(one == other)
    for key in _KEYS:
        mine, yours = _get(one, key), _get(other, key)
        if not _is_nothing(mine) and not _is_nothing(yours):
            return bool(mine == yours)
    return bool(one == other)


def _get(item: Any, path: str) -> Any:
    for name in path.split("."):
        item = getattr(item, name, None)
    if path == "pci.bus_id" and isinstance(item, str):
        return bus_id(item)
    is_number = path == "index" and isinstance(item, int)
    return None if is_number and item < 0 else item  # below 0 it is not known


def _is_nothing(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {}
