"""Tells the source of a program from what a program printed: only the latter shows a fault.

A message in a source stands between quotes, in a comment or in a table of messages. Tracebacks,
logs and people quote lines of sources as well: so one line of a log, a quotation mark of Markdown,
or a sentence at the beginning make a text no source.
"""

import re
from collections.abc import Iterable
from itertools import islice

_LOOKED_AT = 300  # lines that are not blank
_LEAST_LINES = 4
_LEAST_SHARE = 0.25  # the rest are bodies, texts over several lines and comments

_PYTHON = (
    r"def \w+\(|class \w+.*:$|import \w|from [\w.]+ import |@\w[\w.]*(?:\(.*)?$|(?:el)?if .*:$"
    r"|else:$|for .* in .*:$|try:$|except\b.*:$|raise \w+\(|assert \w|return\b|self\.\w|\"{3}"
    r"|\w+(?:\.\w+|\[\w+\])*(?:: [\w\[\]|,. ]+)? [-+|]?= \S"
)
_LIKE_C = (
    r"#(?:include|define|pragma)\b|namespace |template ?<|static |const |case .*:$|//|/\*|\*/"
    r"|export (?:default|function|const) |function \w|public |private |package \w|func "
    r"|.*(?:;|\) (?:const )?\{|\} else \{)$"
)
_SHELL = r"#!|if .*; then|(?:fi|done|esac|else|set -\w+(?: \w+)*)$"
_DIFF = r"diff --git|index [0-9a-f]+\.\.|--- a/|\+\+\+ b/|@@ -"
_TABLES = (
    r"(?:- )?(?:patterns?|regexp?|says|relies|means|suspects|bring"
    r"|explained_by|hides|volta_note|examples|expr):(?:\s|$)"
)
_SOURCE = re.compile(rf"\s*(?:{'|'.join((_PYTHON, _LIKE_C, _SHELL, _DIFF, _TABLES))})")

# What else a source may begin with.
_FIRST = re.compile(r"\s*(?:#|--|<\?|- |\[\w|@\w|'use strict'|\w+\()")

_TIMES = (
    r"\[?(?:\d{4}[-/]\d\d[-/]\d\d|\w{3} +\d{1,2} \d\d:\d\d:\d\d|\d\d:\d\d:\d\d)|\[\s*\d+\.\d+\]"
)
_LEVELS = r"(?:\(\w.*\) )?\[?(?:INFO|WARN|WARNING|ERROR|DEBUG|FATAL|CRITICAL)\b"
_ERRORS = (
    r"Traceback \(most|\s*File \".*\", line \d|\S*Error: |(?:fatal|error|warning): "
    r"|.*\d: (?:fatal )?(?:error|warning)(?: #|:)"
)
_COMMANDS = r">>> |(?:\w+@[\w-]+\S*)?\s?[$#>] (?:sudo|\./|python|pip|docker|nvidia|vllm)"
_LOG = re.compile(rf"(?:\S{{1,30}}\s+\|\s+)?(?:{_TIMES})|{_LEVELS}|{_ERRORS}|{_COMMANDS}|```|> \w")


def is_source(lines: Iterable[str]) -> bool:
    """Say whether a text is a program's source, by its first lines."""
    looked_at = list(islice((line for line in lines if line.strip()), _LOOKED_AT))
    first = looked_at[0] if looked_at else ""
    if not (_SOURCE.match(first) or _FIRST.match(first)) or any(map(_LOG.match, looked_at)):
        return False
    found = sum(bool(_SOURCE.match(line)) for line in looked_at)
    return found >= max(_LEAST_LINES, len(looked_at) * _LEAST_SHARE)
