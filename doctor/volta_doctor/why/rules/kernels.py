"""The kernel that runs, against the headers and the modules that there are for kernels."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.commands import commands
from volta_doctor.why.rules import likely, rule
from volta_doctor.words import few

# The first line of uname -a.
_UNAME_ALL = re.compile(r"(?:^|\s)Linux \S+ (\d+\.\d+\.[\w.+~-]+) ")
# nvidia/550.54.14, 5.15.0-91-generic, x86_64: installed
_DKMS = re.compile(r"\bnvidia\S*(?:/|, ?)[\d.]+, (\d+\.\d+\.[^,\s]+), \w+: installed")
_MODULE = re.compile(r"/lib/modules/([^/\s]+)/\S*/nvidia(?:-current)?\.ko")
# nvidia, 450.80.02: added; nvidia/550.54.14: added. A line with a kernel in it says more.
_ADDED = re.compile(r"^\W*nvidia[\w-]*(?:/|, ?)[\d.]+: added\b")
_ASKED = re.compile(r"linux-(?:kernel-)?headers|kernel-(?:devel|headers)|/usr/src|/build\b")
_LISTS = re.compile(r"^(?:sudo )?(?:dpkg|apt|apt-cache|rpm|dnf|yum|ls|zypper|pacman|find)\b")
_KERNEL = re.compile(r"\b(\d+\.\d+\.\d+[\w.+~-]*)")
_NONE = re.compile(
    r"is not installed|no packages found|No such file|cannot access|no matching", re.I
)


@rule("kmod-next-boot")
def for_other_kernels(case: Case, row: Row) -> Iterator[Finding]:
    """There are modules, and none for the kernel that runs."""
    running = running_kernel(case)
    built: dict[str, Evidence] = {}
    for regex in (_DKMS, _MODULE) if running else ():
        for match, evidence in case.matching(regex):
            built.setdefault(match[1], evidence)
    if running and built and running[0] not in built:
        kernels = few(sorted(built), 3)
        text = f"Kernel {running[0]} runs, and there are NVIDIA modules for {kernels} only."
        yield row.fail(text, running[1], *built.values())


@rule("kernel-headers")
def never_built(case: Case, row: Row) -> Iterator[Finding]:
    """Somebody looked for headers, and those of the running kernel are not listed."""
    ran = commands(case)
    if not ran:
        return
    added, running = case.lines(_ADDED), running_kernel(case)
    named = case.lines("nvidia", 1)
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


def running_kernel(case: Case) -> tuple[str, Evidence] | None:
    """Return the release that `uname` printed, and the line."""
    for ran in commands(case):
        match = ran.output and "uname" in ran.command and _KERNEL.search(ran.output[0][0])
        if match:
            return match[1], ran.output[0][1]
    return next(((match[1], seen) for match, seen in case.matching(_UNAME_ALL)), None)


def _has(kernels: set[str], running: str) -> bool:
    base = re.sub(r"-(?:generic|amd64|cloud-amd64|lowlatency)$|\.x86_64$", "", running)
    return any(base in kernel for kernel in kernels)
