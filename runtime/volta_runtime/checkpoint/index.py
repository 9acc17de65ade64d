"""The shards of a checkpoint in safetensors, and the index that says what is in which."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from volta_runtime.checkpoint.faults import Fault, few
from volta_runtime.checkpoint.files import lfs_fault, opened, too_many, unread
from volta_runtime.checkpoint.safetensors import MAX_HEADER_BYTES, read_header
from volta_runtime.checkpoint.tensors import TensorInfo

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<total>\d{5,})(?P<suffix>\.\w+)")

_NAMED = 8  # names in one message


@dataclass(frozen=True)
class Shards:
    """The tensors of a directory's safetensors files, by name.

    files: those of them that are there. index: tensor to shard; total_size: bytes of all tensors;
    both as the index says.
    """

    files: tuple[str, ...]
    tensors: Mapping[str, TensorInfo]
    index: Mapping[str, str]
    total_size: int | None
    faults: tuple[Fault, ...]


class _Index(msgspec.Struct):
    weight_map: dict[str, str]
    metadata: dict[str, Any] | None = None

    @property
    def total_size(self) -> int | None:
        """Bytes; some writers make it a float."""
        size = (self.metadata or {}).get("total_size")
        whole = type(size) is int or (type(size) is float and size.is_integer())
        return int(size) if whole and size is not None and size >= 0 else None


def read_shards(directory: Path, names: Collection[str]) -> Shards:
    """Read the headers of the files that the index names, or without one of those that are there.

    names: of the directory's entries.
    """
    faults: list[Fault] = []
    index = _read_index(directory / INDEX, faults) if INDEX in names else None
    shards = (
        sorted(set(index.weight_map.values())) if index else _unindexed(directory, names, faults)
    )
    there = tuple(name for name in shards if name in names)
    missing = [name for name in shards if name not in names]
    if missing:
        faults.append(_missing(directory / INDEX, shards, missing))
    tensors: dict[str, TensorInfo] = {}
    unsound: set[str] = set()
    read: set[str] = set()
    for shard in there:
        header = read_header(directory / shard)
        faults += header.faults
        faults += _held_twice(tensors, header.tensors)
        tensors |= header.tensors
        unsound |= header.unsound
        if header.tensors:
            read.add(shard)
    if index is None:
        return Shards(there, tensors, {}, None, tuple(faults))
    faults += _beside(directory, names, shards)
    weight_map = {name: shard for name, shard in index.weight_map.items() if name not in unsound}
    faults += _disagreements(directory, weight_map, tensors, read)
    if read == set(shards) and not unsound:
        faults += _size_fault(directory / INDEX, index.total_size, tensors)
    return Shards(there, tensors, index.weight_map, index.total_size, tuple(faults))


def _fault(
    message: str, file: Path, tensor: str = "", expected: str = "", found: str = ""
) -> Fault:
    return Fault("st-index", message, file, tensor, expected, found)


def _read_index(file: Path, faults: list[Fault]) -> _Index | None:
    """The index where it is sound; file names that lead elsewhere are left out."""
    try:
        with opened(file) as (stream, size):
            raw = stream.read(MAX_HEADER_BYTES)
    except OSError as error:
        faults.append(unread("st-index", file, error))
        return None
    if pointer := lfs_fault(file, raw[:1024], size):
        faults.append(pointer)
        return None
    if words := too_many(raw):
        faults.append(_fault(words, file, "", "a weight_map of names"))
        return None
    try:
        index = msgspec.json.decode(raw, type=_Index)
    except (msgspec.DecodeError, RecursionError) as error:
        faults.append(_fault(f"not a sound index ({error})", file, "", "a weight_map of names"))
        return None
    if not index.weight_map:
        faults.append(_fault("weight_map is empty: it names no tensor", file))
    odd = {shard for shard in index.weight_map.values() if not _plain(shard)}
    words = "a shard is no name of a file in this directory"
    faults += [_fault(words, file, "", "a file name", shard) for shard in sorted(odd)[:_NAMED]]
    index.weight_map = {n: shard for n, shard in index.weight_map.items() if shard not in odd}
    return index


def _plain(name: str) -> bool:
    """Whether a name is that of a file in the directory itself."""
    return name not in ("", ".", "..") and "/" not in name and name.isprintable()


def _unindexed(directory: Path, names: Collection[str], faults: list[Fault]) -> list[str]:
    """The files that are loaded where no index is: one by its usual name, or all that are there."""
    if WEIGHTS in names:  # others beside it are adapters or copies
        return [WEIGHTS]
    found = sorted(name for name in names if name.endswith(".safetensors"))
    totals = {
        (match["stem"], int(match["total"])) for name in found if (match := SHARD.fullmatch(name))
    }
    for stem, total in sorted(totals):
        if total > len(found):
            have = sum(name.startswith(f"{stem}-") for name in found)
            words = f"{total - have} of {total} shards {stem}-* are missing, and so is {INDEX}"
            faults.append(_fault(words, directory, "", f"{total} shards", f"{have}"))
    if len(found) > 1 and INDEX not in names:
        words = f"{len(found)} safetensors files and no {INDEX} that says what is in which"
        faults.append(Fault("st-index", words, directory, "", INDEX, few(found), level="warn"))
    return found


def _beside(directory: Path, names: Collection[str], shards: Collection[str]) -> Iterator[Fault]:
    """Files that look like shards of this model and are none by the index, or its whole."""
    stems = {match["stem"] for shard in shards if (match := SHARD.fullmatch(shard))}
    found = []
    for name in sorted(set(names) - set(shards)):
        match = SHARD.fullmatch(name)
        if match and match["stem"] in stems and match["suffix"] == ".safetensors":
            found.append(name)
    if WEIGHTS in names and WEIGHTS not in shards:
        found.append(WEIGHTS)
    if found:
        words = (
            f"{INDEX} does not name {few(found)}, of which one loader takes no notice and another"
            " takes the tensors"
        )
        file = directory / found[0]
        yield Fault("st-index", words, file, "", "files that it names", found[0], "warn")


def _missing(index: Path, shards: Collection[str], missing: Collection[str]) -> Fault:
    words = f"{len(missing)} of {len(shards)} shards that it names are missing: {few(missing)}"
    return _fault(words, index, "", f"{len(shards)} files", f"{len(shards) - len(missing)} of them")


def _held_twice(
    tensors: Mapping[str, TensorInfo], more: Mapping[str, TensorInfo]
) -> Iterator[Fault]:
    by_file = Counter(tensors[name].file for name in more.keys() & tensors.keys())
    for file, count in by_file.items():
        names = [name for name in more if name in tensors and tensors[name].file == file]
        words = f"it is in {file.name} too" + (f", as are {count - 1:,} more" if count > 1 else "")
        yield _fault(words, more[names[0]].file, names[0], "in one shard", "in two")


def _disagreements(
    directory: Path,
    weight_map: Mapping[str, str],
    tensors: Mapping[str, TensorInfo],
    read: Collection[str],
) -> Iterator[Fault]:
    """Tensors that are not where the index says, one fault for each shard and kind."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, shard in weight_map.items():
        info = tensors.get(name)
        if info is None and shard in read:
            alike.setdefault((shard, "none"), []).append(name)
        elif info is not None and info.file.name != shard:
            alike.setdefault((shard, info.file.name), []).append(name)
    for name in tensors.keys() - weight_map.keys():
        alike.setdefault((tensors[name].file.name, ""), []).append(name)
    for (shard, other), names in sorted(alike.items()):
        first, more = min(names), f", so for {len(names) - 1:,} more" if len(names) > 1 else ""
        if other == "":
            words, expected, found = f"{INDEX} does not list it{more}", "listed", "not listed"
        elif other == "none":
            words, expected, found = (
                f"{INDEX} lists it there and no shard has it{more}",
                shard,
                other,
            )
        else:
            words = f"{INDEX} says it is in {shard}, and it is in {other}{more}"
            expected, found = shard, other
        yield _fault(words, directory / shard, first, expected, found)


def _size_fault(
    index: Path, total: int | None, tensors: Mapping[str, TensorInfo]
) -> Iterator[Fault]:
    held = sum(info.bytes for info in tensors.values())
    if total is not None and total != held:
        yield Fault(
            "shard-mixed-revisions",
            f"total_size is {total:,} bytes and the tensors of all shards take {held:,}: the index"
            " and the shards may be of two revisions",
            index,
            expected=f"{total:,} bytes",
            found=f"{held:,} bytes",
            level="warn",
        )
