"""A module that DKMS knows and could not build, for the headers of the kernel are not there."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.commands import Ran, commands
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.rules.driver import every_line

# nvidia, 450.80.02: added; nvidia/550.54.14: added. A line with a kernel in it says more.
_ADDED = re.compile(r"^\W*nvidia[\w-]*(?:/|, ?)[\d.]+: added\b")
_ASKED = re.compile(r"linux-(?:kernel-)?headers|kernel-(?:devel|headers)|/usr/src|/build\b")
_LISTS = re.compile(r"^(?:sudo )?(?:dpkg|apt|apt-cache|rpm|dnf|yum|ls|zypper|pacman|find)\b")
_KERNEL = re.compile(r"\b(\d+\.\d+\.\d+[\w.+~-]*)")
_NONE = re.compile(
    r"is not installed|no packages found|No such file|cannot access|no matching", re.I
)


@rule("kernel-headers")
def never_built(case: Case, row: Row) -> Iterator[Finding]:
    """Somebody looked for headers, and those of the running kernel are not listed."""
    ran = commands(case)
    if not ran:
        return
    added = [seen for line, seen in every_line(case) if _ADDED.search(line)]
    named = case.lines("nvidia", 1)
    running = _running(ran)
    for at, one in enumerate(ran):
        if not (named and _LISTS.match(one.command) and _ASKED.search(one.command)):
            continue
        listed = [(text, seen) for text, seen in one.output if not _NONE.search(text)]
        is_last = at + 1 == len(ran)  # what it printed may not have been pasted
        if not listed and not one.output and is_last and not added:
            continue
        kernels = {match for text, _ in listed for match in _KERNEL.findall(text)}
        if listed and not (running and kernels and not _has(kernels, running[0])):
            continue
        which = f" of kernel {running[0]}" if running else ""
        seen = [*added[:1], one.evidence, *(s for _, s in one.output[:2])]
        seen += [running[1]] if running else []
        finding = row.fail(f"No headers{which} are installed.", *dict.fromkeys(seen))
        yield finding if added else likely(finding, "the text does not show what DKMS built")
        return


def _running(ran: list[Ran]) -> tuple[str, Evidence] | None:
    for one in ran:
        match = one.output and "uname" in one.command and _KERNEL.search(one.output[0][0])
        if match:
            return match[1], one.output[0][1]
    return None


def _has(kernels: set[str], running: str) -> bool:
    base = re.sub(r"-(?:generic|amd64|cloud-amd64|lowlatency)$|\.x86_64$", "", running)
    return any(base in kernel for kernel in kernels)
