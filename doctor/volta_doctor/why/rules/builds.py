"""What builds were asked for, and what they left behind: lists of architectures, locks, caches."""

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.checks.arch_list import parse, shown
from volta_doctor.checks.environments import volta_arch
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, possible, rule

_LIST = re.compile(
    r"""(?P<name>TORCH_CUDA_ARCH_LIST|CMAKE_CUDA_ARCHITECTURES|CUDAARCHS)(?::\w+)?['"\]]*\s*[=:]\s*
        (?P<quote>['"])?(?P<value>[\d.+PTXafrelvirtu;,\- ]*\d[\d.+PTXafrelvirtu;,\- ]*)""",
    re.VERBOSE,
)
_CMAKE_LIST = re.compile(r"CUDA (?:supported )?target architectures: (?P<value>\d[\d.;af+PTX]*)")
_ENGINE_LIST = re.compile(r"CUDA Archs: (?P<value>\d[\d. af+PTX]*);")
# A list that is set here and now, and not merely shown among a host's variables.
_SET = re.compile(r"\bexport\b|\b(?:ENV|ARG|set)\b|environ|-D|\bpip\b|cmake|python|build|make|-e ")
_V1_ALONE = re.compile(
    r"(?:V1 LLM engine \(v|vLLM v?|vllm-openai:v?|vllm==|vllm |version )(?P<version>0\.\d+)\b"
)
_V1_ALONE_FROM = 11  # vLLM 0.11 removed the V0 engine (its release notes)
_ENGINE_STOPS = r"EngineCore failed to start|Engine core initialization failed|EngineCore hit an"
_TRITON = r"triton/(?:compiler|runtime|backends)|triton\.compiler|torch/_inductor|InductorError"
_BROKEN_BUILDS = ("no-kernel-image", "build-stopped", "undefined-symbol")

_LOCK = re.compile(r"^-[rwx-]{9}\S*\s+\d+\s+.*\s(?:\S*/)?lock$|torch_extensions/\S+/lock\b")
_COMPILER = re.compile(r"(?:^|[\s/])(?:ninja|nvcc|cicc|cudafe\+\+|cc1plus|c\+\+|g\+\+)\s+-|ptxas\s")
_WAITS = r"as PyTorch extensions root|Loading \w+ extension|Loading extension module"
_HANGS = r"nothing more|prints nothing|stuck at|hangs? |hanging|no output|stays there|卡住|卡在"
_TAG = re.compile(r"torch_extensions/(?P<tag>py(?P<python>3\d+)_(?P<cuda>cu\d{3}|cpu))")
_PYTHON = re.compile(r"/python(3)\.(\d+)/|\bPython (3)\.(\d+)\.\d|cpython-(3)(\d+)-")


class _Asked(NamedTuple):
    """A list of architectures: its variable and value, and whether it is set where it stands."""

    variable: str
    value: str
    is_set: bool
    evidence: Evidence


def _lists(case: Case) -> Iterator[_Asked]:
    for text in case.texts:
        for line in text.lines:
            for match in _LIST.finditer(line.text):
                value = match["value"]
                # Between quotes a list may have blanks; elsewhere a blank ends it, but for a line
                # that is nothing but the variable.
                if not match["quote"] and match.start() > 0:
                    value = value.split(" ")[0]
                is_set = bool(_SET.search(line.text))
                yield _Asked(match["name"], value.strip(), is_set, text.evidence(line))
            for match in _CMAKE_LIST.finditer(line.text):
                evidence = text.evidence(line)
                yield _Asked("TORCH_CUDA_ARCH_LIST", match["value"], True, evidence)


@rule("arch-list-env")
def arch_list(case: Case, row: Row) -> Iterable[Finding]:
    """A list without 7.0 that a build was given."""
    if case.card == "other":
        return
    volta = int(volta_arch())
    broken = any(name in case.symptoms for name in _BROKEN_BUILDS)
    for asked in _lists(case):
        entries = parse(asked.variable, asked.value)
        if not entries or any(e.number == volta or (e.number < volta and e.ptx) for e in entries):
            continue
        if not (asked.is_set or broken):
            continue
        named = ", ".join(shown(entry.number) for entry in entries)
        text = f"{asked.variable}={asked.value} makes no code for a V100: {named}; a V100 is 7.0."
        finding = row.fail(text, asked.evidence)
        if case.card == "volta":
            yield finding
        else:
            yield likely(finding, "the text does not name the card; on a V100 it is so")
        return


@rule("engine-drops-volta")
def engine_build(case: Case, row: Row) -> Iterable[Finding]:
    """The report of vLLM of the architectures that its image was built for."""
    if case.card == "other" or "no-kernel-image" not in case.symptoms:
        return
    for text in case.texts:
        for line in text.lines:
            match = _ENGINE_LIST.search(line.text)
            if match and int(volta_arch()) not in [
                entry.number for entry in parse("TORCH_CUDA_ARCH_LIST", match["value"])
            ]:
                built = match["value"].strip()
                finding = row.fail(f"vLLM's image is built for {built}.", text.evidence(line))
                yield likely(finding, "it reports the variable that its image carries")
                return


@rule("engine-drops-volta")
def v1_alone(case: Case, row: Row) -> Iterable[Finding]:
    """A vLLM that has the V1 engine alone, and stops in Triton's compiler on a Volta card."""
    stops = case.lines(_ENGINE_STOPS, 1)
    if case.card != "volta" or not stops or not case.lines(_TRITON, 1):
        return
    for text in case.texts:
        for line in text.lines:
            match = _V1_ALONE.search(line.text)
            if match and int(match["version"].split(".")[1]) >= _V1_ALONE_FROM:
                said = (
                    f"vLLM {match['version']} has the V1 engine alone, whose kernels are Triton's."
                )
                finding = row.fail(said, text.evidence(line), *stops)
                yield possible(finding, "Triton names 8.0 as its minimum; the text shows no more")
                return


@rule("ext-lock")
def lock(case: Case, row: Row) -> Iterable[Finding]:
    """A lock in a listing of a cache while no compiler is at work, or a wait without an end."""
    if case.found("ext-lock"):
        return
    in_cache = case.lines(r"torch_extensions", 1)
    for text in case.texts:
        locks = [line for line in text.lines if _LOCK.search(line.text)]
        compilers = [line for line in text.lines if _COMPILER.search(line.text)]
        if locks and in_cache and not compilers:
            seen = [text.evidence(line) for line in locks[:3]]
            text_said = "A lock lies in the cache of extensions, and no compiler is at work."
            finding = row.fail(text_said, *seen)
            yield likely(finding, "the listing does not tell how old the lock is by the clock")
            return
        waits = case.lines(_WAITS, 1)
        if waits and not compilers and re.search(_HANGS, text.joined(), re.IGNORECASE):
            finding = row.fail("It hangs where torch waits for the lock of an extension.", *waits)
            yield possible(finding, "a compiler may still be at work; the lock is not shown")
            return


@rule("ext-cache")
def cache_of_another(case: Case, row: Row) -> Iterable[Finding]:
    """A directory of torch's cache for another Python than the one that runs."""
    tags: dict[str, tuple[str, Evidence]] = {}
    pythons: set[str] = set()
    for text in case.texts:
        for line in text.lines:
            for match in _TAG.finditer(line.text):
                tags.setdefault(match["python"], (match["tag"], text.evidence(line)))
            for found in _PYTHON.finditer(line.text):
                pythons.add("".join(filter(None, found.groups())))
    other = {python: seen for python, seen in tags.items() if pythons and python not in pythons}
    for python, (tag, evidence) in other.items():
        runs = ", ".join(f"3.{p[1:]}" for p in sorted(pythons))
        said = f"{tag} in the cache is for Python 3.{python[1:]}, and {runs} runs."
        yield likely(row.warn(said, evidence), "the tag of the directory names its Python")
