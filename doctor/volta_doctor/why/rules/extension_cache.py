"""What builds of extensions left behind in torch's cache: locks, and files for another Python."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, possible, rule
from volta_doctor.why.vocabulary import HANGS

_LOCK = re.compile(r"^-[rwx-]{9}\S*\s+\d+\s+.*\s(?:\S*/)?lock$|torch_extensions/\S+/lock\b")
_COMPILER = re.compile(r"(?:^|[\s/])(?:ninja|nvcc|cicc|cudafe\+\+|cc1plus|c\+\+|g\+\+)\s+-|ptxas\s")
_WAITS = r"as PyTorch extensions root|Loading \w+ extension|Loading extension module"
_TAG = re.compile(r"torch_extensions/(?P<tag>py(?P<python>3\d+)_(?P<cuda>cu\d{3}|cpu))")
_PYTHON = re.compile(r"/python(3)\.(\d+)/|\bPython (3)\.(\d+)\.\d|cpython-(3)(\d+)-")


@rule("ext-lock")
def lock(case: Case, row: Row) -> Iterator[Finding]:
    """A lock in a listing of a cache while no compiler is at work, or a wait without an end."""
    in_cache = case.lines("torch_extensions", 1)
    if case.found("ext-lock") or case.lines(_COMPILER, 1):
        return
    if in_cache and (locks := case.lines(_LOCK, 3)):
        text = "A lock lies in the cache of extensions, and no compiler is at work."
        finding = row.fail(text, *locks)
        yield likely(finding, "the listing does not tell how old the lock is by the clock")
    elif (waits := case.lines(_WAITS, 1)) and case.lines(HANGS, 1):
        finding = row.fail("It hangs where torch waits for the lock of an extension.", *waits)
        yield possible(finding, "a compiler may still be at work; the lock is not shown")


@rule("ext-cache")
def cache_of_another(case: Case, row: Row) -> Iterator[Finding]:
    """A directory of torch's cache for another Python than the one that runs."""
    tags: dict[str, tuple[str, Evidence]] = {}
    for match, evidence in case.matching(_TAG):
        tags.setdefault(match["python"], (match["tag"], evidence))
    if not tags:
        return
    pythons = {"".join(filter(None, match.groups())) for match, _ in case.matching(_PYTHON)}
    for python, (tag, evidence) in tags.items():
        if pythons and python not in pythons:
            runs = ", ".join(f"3.{p[1:]}" for p in sorted(pythons))
            said = f"{tag} in the cache is for Python 3.{python[1:]}, and {runs} runs."
            yield likely(row.warn(said, evidence), "the tag of the directory names its Python")
