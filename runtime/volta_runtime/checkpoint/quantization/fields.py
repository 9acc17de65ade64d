"""Reads the fields of a config whose values may be of any type, noting what is wrong with them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.faults import Fault, Level

_MOST = 20  # faults of one config; a file of nothing else needs no longer list
_WIDTH = 60  # characters of a value that are shown


class Fields:
    """An object of a config file.

    where: its place in the file ("quantization_config.config_groups.group_0"); faults: shared with
    the objects inside.
    """

    def __init__(
        self, file: Path, where: str, data: Mapping[str, Any], faults: list[Fault] | None = None
    ) -> None:
        self.file = file
        self.where = where
        self.data = data
        self.faults: list[Fault] = [] if faults is None else faults

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def holds(self, key: str) -> bool:
        """Whether there is an object under that key."""
        return isinstance(self.data.get(key), dict)

    def place(self, key: str) -> str:
        """Where a field stands in the file."""
        return f"{self.where}.{key}" if self.where else key

    def text(self, *keys: str) -> str:
        """A string, empty where there is none."""
        value = self._value(keys, str, "a string")
        return value if isinstance(value, str) else ""

    def flag(self, *keys: str) -> bool | None:
        """True or false."""
        value = self._value(keys, bool, "true or false")
        return value if isinstance(value, bool) else None

    def number(self, *keys: str) -> int | None:
        """A whole number."""
        value = self._value(keys, int, "a whole number")
        return value if isinstance(value, int) else None

    def numbers(self, key: str, count: int) -> tuple[int, ...] | None:
        """A list of so many positive whole numbers."""
        value = self.data.get(key)
        if value is None:
            return None
        if (
            isinstance(value, list)
            and len(value) == count
            and all(type(item) is int and item > 0 for item in value)
        ):
            return tuple(value)
        self.wrong(key, f"a list of {count} positive whole numbers")
        return None

    def strings(self, *keys: str) -> list[str]:
        """A list of strings, empty where there is none; a single string counts as a list of one."""
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, str):
                return [value]
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                return value
            self.wrong(key, "a list of strings")
        return []

    def inside(self, key: str) -> "Fields | None":
        """An object in this one."""
        value = self._value((key,), dict, "an object")
        if not isinstance(value, dict):
            return None
        return Fields(self.file, self.place(key), value, self.faults)

    def wrong(self, key: str, expected: str) -> None:
        """Note that a field is not what it must be."""
        found = brief(self.data.get(key))
        self.note(f"{self.place(key)} is {found}, not {expected}", expected, found)

    def unknown(self, key: str, found: str, known: Iterable[str], level: Level = "warn") -> None:
        """Note a word that is sound, and none that Volta knows."""
        text = f"{self.place(key)}: {found} is none that Volta knows"
        self.note(text, ", ".join(sorted(known)), found, level=level)

    def note(
        self,
        message: str,
        expected: str = "",
        found: str = "",
        level: Level = "fail",
        check: str = "quant-config",
    ) -> None:
        """Note a fault of the config."""
        if len(self.faults) < _MOST:
            self.faults.append(Fault(check, message, self.file, "", expected, found, level))

    def _value(self, keys: tuple[str, ...], kind: type, expected: str) -> object:
        for key in keys:
            value = self.data.get(key)
            if value is None:
                continue
            if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
                return value
            self.wrong(key, expected)
            return None
        return None


def brief(value: object) -> str:
    """A value of a config, as short as a message needs it."""
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    text = repr(value[:_WIDTH] if isinstance(value, str) else value)
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"
