"""JSON in a paste: whole objects, pieces of one, what was cut off, with lines of other things."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from volta_doctor.logs.text import Line, Text, decode

_OPENS = re.compile(r'(?:"([^"]*)"\s*:\s*)?([{\[])')
_CLOSES = re.compile(r"[}\]],?$")
_STRANGE = 3  # lines in a row that are no JSON, in an object that is not closed yet


class Found(NamedTuple):
    """An object, and the line that it begins on."""

    content: dict[str, Any]
    line: Line


def objects(text: Text) -> Iterator[Found]:
    """Yield the objects of a text; members without an object around them are one."""
    whole = _loads(decode(text.data)) if text.data.lstrip()[:1] == b"{" else None
    if isinstance(whole, dict):
        yield Found(whole, text.lines[0])
        return
    builder = _Builder()
    for line in text.lines:
        if done := builder.take(line):
            yield done
    if done := builder.end():
        yield done


class _Builder:
    """Puts an object together line by line, forgiving of trailing commas and missing brackets."""

    def __init__(self) -> None:
        self._open: list[Any] = []  # objects and lists that are not closed yet, the root first
        self._line: Line | None = None
        self._strange = 0
        self._bare = False  # members without an object around them

    def take(self, line: Line) -> Found | None:
        """Take a line; return an object that is complete now."""
        body = line.body.strip()
        part = body.removesuffix(",")
        if match := _OPENS.fullmatch(part):
            return self._push(match[1], {} if match[2] == "{" else [], line)
        if _CLOSES.fullmatch(body):
            if len(self._open) > 1:
                self._open.pop()
                return None
            return self.end()
        if part.startswith("{") and isinstance(found := _loads(part), dict):
            if self._open and isinstance(self._open[-1], list):
                self._open[-1].append(found)
                return None
            done = self.end()
            self._open, self._line = [found], line
            return done or self.end()
        if part.startswith('"') and isinstance(found := _loads(f"{{{part}}}"), dict):
            self._add(found, line)
            return None
        if self._open and isinstance(self._open[-1], list):
            items = _loads(f"[{part}]")
            if isinstance(items, list):
                self._open[-1] += items
                return None
        self._strange += bool(body)
        return self.end() if self._bare or self._strange >= _STRANGE else None

    def _add(self, found: dict[str, Any], line: Line) -> None:
        self._strange = 0
        if not self._open:
            self._open, self._line, self._bare = [{}], line, True
        if isinstance(self._open[-1], dict):
            self._open[-1].update(found)

    def _push(self, key: str | None, new: Any, line: Line) -> Found | None:
        self._strange = 0
        done = None
        if key is None and not (self._open and isinstance(self._open[-1], list)):
            done = self.end()
        if not self._open:
            if isinstance(new, list) and key is None:
                return done
            self._open, self._line = [{}], line
            self._bare = key is not None
            if key is None:
                return done
        inside = self._open[-1]
        if isinstance(inside, list):
            inside.append(new)
        else:
            inside[key or ""] = new
        self._open.append(new)
        return done

    def end(self) -> Found | None:
        """Return what was put together, if there is anything in it, and begin anew."""
        root = self._open[0] if self._open else {}
        line, self._open, self._strange, self._bare = self._line, [], 0, False
        return Found(root, line) if root and line else None


def _loads(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
