"""Files of a model in a listing: pointers in place of weights, and shards that are missing."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.logs.parts import Listed
from volta_doctor.why.case import Case
from volta_doctor.why.commands import counts
from volta_doctor.why.rules import likely, rule
from volta_doctor.words import few

_WEIGHTS = re.compile(r"\.(?:safetensors|bin|gguf|pt|pth)$|(?:^|/)tokenizer\.(?:model|json)$")
_POINTER = range(100, 201)  # bytes: a version line, a sha256 and a size (git-lfs docs/spec.md)
_SHARD = re.compile(r"^(?P<stem>.*?)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.\w+)$")
_SHOWN = 4  # names in an answer (ours)
# `wc -c`, `stat -c`, `du -b`, a table: a size beside a name, on either side.
_SIZED = re.compile(
    r"(?:^|\s)(?P<size>1\d\d)(?: ?(?:B|bytes))?\s+(?P<name>\S+\.(?:safetensors|bin|gguf))$"
    r"|(?:^|[\s|])(?P<named>\S+\.(?:safetensors|bin|gguf))[\s|:]+(?P<bytes>1\d\d)"
    r"(?: ?(?:B|bytes))?$",
    re.IGNORECASE,
)
# ls *.safetensors | wc -l; grep -o '...safetensors' model.safetensors.index.json | sort -u | wc -l
_COUNTS = r".*(?:\|\s*wc -l|\bgrep -\w*c|\blength\b)"
_FILES = re.compile(r"\b(?:ls|find)\b(?!.*index\.json).*\.?(?:safetensors|bin|gguf)\b" + _COUNTS)
_NAMED = re.compile(r"(?:index\.json.*(?:sort -\w*u|uniq)|uniq.*index\.json)")


@rule("lfs-pointer")
def as_small_as_a_pointer(case: Case, row: Row) -> Iterator[Finding]:
    """No weight file is as small as a pointer."""
    found = [file for file in case.listed if _WEIGHTS.search(file.name)]
    small = [file for file in found if file.bytes in _POINTER] or list(_sized(case))
    if small:
        names = few([file.name for file in small], _SHOWN)
        size = "are as small as pointers" if len(small) > 1 else "is as small as a pointer"
        yield row.fail(
            f"{names} {size} ({small[0].bytes} bytes).", *(f.evidence for f in small[:_SHOWN])
        )


def _sized(case: Case) -> Iterator[Listed]:
    for match, evidence in case.matching(_SIZED):
        name, size = match["name"] or match["named"], match["size"] or match["bytes"]
        yield Listed(name, int(size), evidence)


@rule("st-index")
def shards_that_are_missing(case: Case, row: Row) -> Iterator[Finding]:
    """The name of a shard says how many there are; a gap in a listing is one that is missing."""
    by_model: dict[tuple[str, str, int], dict[int, Listed]] = {}
    for file in case.listed:
        match = _SHARD.match(file.name.rsplit("/", 1)[-1])
        if match:
            key = match["stem"], match["end"], int(match["count"])
            by_model.setdefault(key, {})[int(match["number"])] = file
    for (stem, end, count), held in by_model.items():
        last = count if _goes_on(case, stem) else max(held)
        missing = [number for number in range(1, last + 1) if number not in held]
        if not missing or len(missing) * 2 > count:
            continue
        names = few([f"{stem}-{n:05d}-of-{count:05d}{end}" for n in missing], _SHOWN)
        finding = row.fail(
            f"The listing has no {names}.", *(f.evidence for f in [*held.values()][:2])
        )
        yield likely(finding, "the listing may have been shortened")
    yield from _index(case, row)
    yield from _counts(case, row)


def _goes_on(case: Case, stem: str) -> bool:
    """Say whether the listing shows files that stand behind the shards."""
    names = [file.name.rsplit("/", 1)[-1] for file in case.listed]
    return any(name > f"{stem}-99999" for name in names)


def _index(case: Case, row: Row) -> Iterator[Finding]:
    held = {file.name.rsplit("/", 1)[-1] for file in case.listed}
    for config in case.configs:
        shards = config.content.get("weight_map")
        if not isinstance(shards, dict):
            continue
        promised = {str(shard) for shard in shards.values()}
        if held & promised and (missing := sorted(promised - held)):
            yield row.fail(
                f"The index names {few(missing, _SHOWN)}, which the listing does not have.",
                config.evidence,
            )


def _counts(case: Case, row: Row) -> Iterator[Finding]:
    """Compare how many shards are there with how many the index names, as commands count them."""
    held, named = next(counts(case, _FILES), None), next(counts(case, _NAMED), None)
    if held and named and held.number < named.number:
        text = f"The index names {named.number} shards, and {held.number} are there."
        yield row.fail(text, *held.evidence, *named.evidence)
