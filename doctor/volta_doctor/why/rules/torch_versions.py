"""Which torch a case names, what that build has code for, and which versions its pins allow."""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from volta_doctor.catalog import Row, compat
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule

# A version of torch with its CUDA tag, beside its name or alone on a line.
_TORCH = re.compile(
    r"(?:\b(?:py)?torch\b[^\n+]{0,40}?|^\W{0,3})\b(?P<version>\d+\.\d+\.\d+)\+(?P<tag>cu\d{3})\b",
    re.IGNORECASE,
)
_ARCHS = re.compile(r"['\"](?:sm|compute)_(\d+)[af]?['\"]")
_FLAGS = re.compile(r"NVCC architecture flags:.*?code=sm_")
_CODE = re.compile(r"code=sm_(\d+)")
# A requirement of torch: in a file, or as pip and uv quote it.
_PIN = re.compile(
    r"(?:^|[\s\"'(\[,])torch\s*(?P<spec>(?:[<>=!~]=?=?\s*\d[\w.*]*(?:\s*(?:,|\band\b)\s*)?)+)",
    re.IGNORECASE,
)
# What was installed, or is to be installed as one build (torch==2.11.0+cu130), is no pin.
_BUILD = re.compile(r"torch==\s*\d[\w.]*\+|cu126|\[pip3\]")


class Torch(NamedTuple):
    """A build that the text names: whether it has sm_70 code, None where no table tells."""

    name: str
    volta: bool | None
    evidence: Evidence


def torches(case: Case) -> Iterator[Torch]:
    """Yield the builds that the texts and the facts in them name, each once."""
    seen: set[str] = set()
    envs = case.facts.python_envs.data
    for env in envs.envs if envs else []:
        if env.torch and env.torch_cuda:
            name = env.torch.partition("+")[0]
            seen.add(f"{name}+cu{env.torch_cuda.replace('.', '')}")
            yield Torch(env.torch, _volta(name, env.torch_cuda), Evidence(env.prefix, env.torch))
    for match, evidence in case.matching(_TORCH, sources=True):
        name = f"{match['version']}+{match['tag']}"
        if name not in seen:
            seen.add(name)
            cuda = f"{match['tag'][2:4]}.{match['tag'][4:]}"
            yield Torch(name, _volta(match["version"], cuda), evidence)


def _volta(version: str, cuda: str) -> bool | None:
    build = compat().torch_build(version, cuda)
    return build.sm_70 if build else None


@rule("torch-arch")
def torch_that_is_named(case: Case, row: Row) -> Iterator[Finding]:
    """A build without sm_70 code that the text names, or a list of architectures without it."""
    if case.card != "volta" and (case.card == "other" or not case.shows("no-kernel-image")):
        return
    envs = case.facts.python_envs.data
    read = bool(envs and any(env.torch for env in envs.envs))  # then its check judges it
    for torch in [] if read else torches(case):
        if torch.volta is False:
            yield row.fail(f"The wheels of torch {torch.name} carry no sm_70 code.", torch.evidence)
            return
    volta = compat().volta.compute_capability.replace(".", "")
    for listed, one in ((_ARCHS, _ARCHS), (_FLAGS, _CODE)):
        for match, evidence in case.matching(listed):
            archs = one.findall(match.string)
            if len(archs) > 1 and volta not in archs:
                named = ", ".join(f"sm_{arch}" for arch in dict.fromkeys(archs))
                yield row.fail(f"torch was built for {named}, not sm_{volta}.", evidence)
                return


@rule("pin-excludes-volta")
def pins(case: Case, row: Row) -> Iterator[Finding]:
    """A requirement that no torch with sm_70 code meets, but for later ones from cu126."""
    if case.card != "volta" and not case.shows("no-kernel-image"):
        return
    for match, evidence in case.matching(_PIN, sources=True):
        spec = re.sub(r"\s*\band\b\s*", ",", match["spec"]).strip(" ,")
        if not _BUILD.search(match.string) and (allowed := _allowed(spec)):
            yield _pin(row, spec, allowed, evidence)
            return


def _pin(row: Row, spec: str, allowed: str, evidence: Evidence) -> Finding:
    if allowed == "none":
        return row.fail(f"torch{spec} allows no torch with sm_70 code.", evidence)
    said = f"torch{spec} allows no torch before 2.11, and of later ones only cu126 has sm_70 code."
    return likely(row.fail(said, evidence), "whether the cu126 build is asked for stands elsewhere")


@cache
def _allowed(spec: str) -> str:
    """Return `cu126` or `none` for what a specifier leaves of Volta's torch, else an empty text."""
    try:
        pinned = SpecifierSet(spec)
    except InvalidSpecifier:
        return ""
    fits = [
        build for build in compat().torch_builds if build.sm_70 and _meets(pinned, build.versions)
    ]
    if not fits:
        return "none"
    return "cu126" if all(build.cuda == ["cu126"] for build in fits) else ""


def _meets(pinned: SpecifierSet, versions: str) -> bool:
    of_build = SpecifierSet(versions)
    # Enough of the versions that there are, or may come, to find one in a range (ours).
    known = (f"2.{minor}.{patch}" for minor in range(30) for patch in (0, 1))
    older = (f"1.{minor}.0" for minor in range(14))
    return any(of_build.contains(v) and pinned.contains(v) for v in (*known, *older))
