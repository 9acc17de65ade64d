"""Makes the checkpoints of the tables beside this file: a base, and steps that change it."""

import copy
import fnmatch
import json
import os
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import corpus_parts as parts
import field_checkpoints
import ggufs
import pytest
import yaml
from checkpoints import write_shard
from corpus_parts import encoded, expand, kit, tensor

from volta_runtime.checkpoint.safetensors import tensor_bytes

HERE = Path(__file__).parent
TINY = HERE.parents[2] / "data/checkpoints"


class Maker:
    """One checkpoint in the making: in memory until a step needs its files."""

    def __init__(self, directory: Path, layouts: dict[str, Any]) -> None:
        self.directory, self.layouts = directory, layouts
        self.tensors: dict[str, list[Any]] = {}
        self.files: dict[str, Any] = {}
        self.parts: list[str] = ["*"]
        self.whole: dict[str, int] = {}
        self.written = False

    # Bases.
    def base(self, name: str) -> None:
        if name.startswith("field:"):
            self._read(
                getattr(field_checkpoints, name[6:])(self.directory.parent / "field", layers=8)
            )
            fills = {"F8_E4M3": b"\x38", "F32": struct.pack("<f", 26880), "BF16": b"\x80\x3f"}
            for full, entry in self.tensors.items():
                if "scale" in full:
                    one = fills[entry[0]]
                    small = full.endswith(("weight_scale_2", "input_scale")) or not entry[1]
                    one = struct.pack("<f", 1e-4) if small and entry[0] == "F32" else one
                    entry[2] = one * (tensor_bytes(entry[0], entry[1]) // len(one))
            self.files |= kit()
        elif name in self.layouts:
            layout = copy.deepcopy(self.layouts[name])
            if "like" in layout:
                self.base(layout["like"])
            self.files["config.json"] = {
                **self.files.get("config.json", {}),
                **layout.get("config", {}),
            }
            for full, text in layout.get("tensors", {}).items():
                self.tensors |= {each: tensor(text) for each in expand(full)}
            self.files |= kit(**layout.get("kit", {})) if layout.get("kit", {}) is not None else {}
            self.files |= layout.get("files", {})
            for step in layout.get("do", []):
                self.step(step)
        elif name != "empty":
            self._read(TINY / name)
            self.files |= kit()

    def _read(self, source: Path) -> None:
        for file in sorted(source.iterdir()):
            if file.suffix == ".json":
                self.files[file.name] = json.loads(file.read_text())
            elif file.suffix == ".gguf":
                self.files[file.name] = file.read_bytes()
            elif file.suffix == ".safetensors":
                self.tensors |= parts.held_tensors(file)

    def write(self) -> Path:
        if self.written:
            return self.directory
        self.written = True
        self.directory.mkdir(parents=True, exist_ok=True)
        left = dict(self.tensors)
        weight_map: dict[str, str] = {}
        for number, pattern in enumerate(self.parts, 1):
            chosen = {n: t for n, t in left.items() if fnmatch.fnmatchcase(n, pattern)}
            left = {n: t for n, t in left.items() if n not in chosen}
            many = len(self.parts) > 1
            suffix = f"-{number:05}-of-{len(self.parts):05}" if many else ""
            if chosen:
                specs = {n: (d, s) if b is None else (d, s, b) for n, (d, s, b) in chosen.items()}
                write_shard(self.directory / f"model{suffix}.safetensors", specs)
                weight_map |= dict.fromkeys(chosen, f"model{suffix}.safetensors")
        if len(self.parts) > 1:
            size = sum(tensor_bytes(d, s) for d, s, _ in self.tensors.values())
            index = {"metadata": {"total_size": size}, "weight_map": weight_map}
            self.files.setdefault("model.safetensors.index.json", index)
        for name, content in self.files.items():
            self._file(name, content)
        found = [file for file in self.directory.rglob("*") if file.is_file()]
        self.whole = {file.name: file.stat().st_size for file in found}
        return self.directory

    def _file(self, name: str, content: Any) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))

    # Steps.
    def step(self, step: dict[str, Any]) -> None:
        for name, argument in step.items():
            on_files = getattr(self, f"file_{name}", None)
            if on_files:
                self.write()
            (on_files or getattr(self, f"do_{name}"))(argument)

    def _matching(self, pattern: str) -> list[str]:
        found = [n for p in expand(pattern) for n in self.tensors if fnmatch.fnmatchcase(n, p)]
        assert found, pattern
        return found

    def do_drop(self, pattern: str) -> None:
        for name in self._matching(pattern):
            del self.tensors[name]

    def do_add(self, specs: dict[str, str]) -> None:
        for pattern, text in specs.items():
            self.tensors |= {name: tensor(text) for name in expand(pattern)}

    def do_rename(self, names: dict[str, str]) -> None:
        for old, new in names.items():
            assert any(re.search(old, name) for name in self.tensors), old
            self.tensors = {re.sub(old, new, name): held for name, held in self.tensors.items()}

    def do_fill(self, values: dict[str, Any]) -> None:
        for pattern, value in values.items():
            for name in self._matching(pattern):
                dtype, shape, _ = self.tensors[name]
                one = encoded(dtype, str(value))
                self.tensors[name][2] = one * (tensor_bytes(dtype, shape) // len(one))

    def do_poke(self, values: dict[str, Any]) -> None:
        """One element, the last, of a tensor."""
        for pattern, value in values.items():
            for name in self._matching(pattern):
                dtype, shape, data = self.tensors[name]
                one = encoded(dtype, str(value))
                data = data or bytes(tensor_bytes(dtype, shape))
                self.tensors[name][2] = data[: -len(one)] + one

    def do_cast(self, casts: dict[str, str]) -> None:
        """Another type and shape in a tensor's place; its numbers are the fill's."""
        for pattern, text in casts.items():
            self.tensors |= {name: tensor(text) for name in self._matching(pattern)}

    def do_transpose(self, pattern: str) -> None:
        for name in self._matching(pattern):
            self.tensors[name][1] = list(reversed(self.tensors[name][1]))

    def do_shards(self, patterns: list[str]) -> None:
        self.parts = patterns

    def do_config(self, values: dict[str, Any]) -> None:
        self.do_json({"config.json": values})

    def do_json(self, files: dict[str, dict[str, Any]]) -> None:
        for file, values in files.items():
            path = self.directory / file
            content = json.loads(path.read_text()) if self.written else self.files[file]
            for place, value in values.items():
                parts.put(content, place, value)
            if self.written:
                path.write_text(json.dumps(content))

    def do_file(self, files: dict[str, Any]) -> None:
        for name, content in files.items():
            if isinstance(content, str) and content.startswith("REPEAT "):
                _, times, text = content.split(" ", 2)
                content = text * int(times)
            self.files[name] = content
            if self.written:
                self._file(name, content)

    def file_write(self, _: Any) -> None:
        """What follows is done to the files."""

    def file_remove(self, name: str) -> None:
        if self.written:
            (self.directory / name).unlink()
        self.files.pop(name, None)

    def file_lfs(self, name: str) -> None:
        self._file(name, parts.POINTER.format("4d7a" * 16))

    def file_cut(self, sizes: dict[str, Any]) -> None:
        for name, size in sizes.items():
            path = self.directory / name
            whole = path.stat().st_size
            os.truncate(path, whole // 2 if size == "half" else size if size >= 0 else whole + size)

    def file_append(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            with (self.directory / name).open("ab") as stream:
                stream.write(text.encode())

    def file_patch(self, files: dict[str, dict[int, str]]) -> None:
        for name, places in files.items():
            with (self.directory / name).open("r+b") as stream:
                for place, held in places.items():
                    stream.seek(place)
                    stream.write(bytes.fromhex(held[1:]))

    def file_header(self, files: dict[str, dict[str, str]]) -> None:
        """Other text in a safetensors header, whose length is told rightly."""
        for name, replacements in files.items():
            path = self.directory / name
            raw = path.read_bytes()
            start = 8 + int.from_bytes(raw[:8], "little")
            text = raw[8:start].decode()
            for old, new in replacements.items():
                assert re.search(old, text), old
                new = "A" * 100_000 if new == "PADDING" else new
                text = re.sub(old, new.replace("\\", "\\\\"), text, count=1)
            held = text.encode("utf-8", "surrogatepass")
            path.write_bytes(len(held).to_bytes(8, "little") + held + raw[start:])

    def file_move(self, names: dict[str, str]) -> None:
        for old, new in names.items():
            target = self.directory / new
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.directory / old).rename(target)

    def file_copy(self, names: dict[str, str]) -> None:
        for old, new in names.items():
            (self.directory / new).write_bytes((self.directory / old).read_bytes())

    def file_link(self, names: dict[str, str]) -> None:
        for name, target in names.items():
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)

    def file_mkdir(self, name: str) -> None:
        (self.directory / name).mkdir(parents=True)

    def file_fifo(self, name: str) -> None:
        os.mkfifo(self.directory / name)

    def file_pickle(self, files: dict[str, str]) -> None:
        for name, kind in files.items():
            self._file(name, parts.pickled(kind))

    def file_sentencepiece(self, files: dict[str, int]) -> None:
        for name, pieces in files.items():
            self._file(name, parts.sentencepiece(pieces))

    def file_consolidated(self, name: str) -> None:
        """All tensors once more, under names of another family, in one file."""
        names = {
            n.removeprefix("model.").replace("self_attn", "attention"): n for n in self.tensors
        }
        (self.directory / name).parent.mkdir(exist_ok=True)
        write_shard(
            self.directory / name, {new: tuple(self.tensors[n][:2]) for new, n in names.items()}
        )

    def file_gguf(self, files: dict[str, dict[str, Any]]) -> None:
        for name, held in files.items():
            pairs = {key: parts.gguf_value(value) for key, value in held.get("pairs", {}).items()}
            tensors = {n: ggufs.Tensor(*entry) for n, entry in held.get("tensors", {}).items()}
            self._file(name, ggufs.gguf(pairs, tensors, version=held.get("version", 3)))


@cache
def layouts() -> dict[str, Any]:
    """The bases by name, read once: YAML of this size takes longer than judging a checkpoint."""
    found: dict[str, Any] = {}
    for file in sorted(HERE.glob("layouts*.yaml")):
        found |= yaml.safe_load(file.read_text())
    return found


@pytest.fixture
def make(tmp_path: Path) -> Callable[[dict[str, Any]], SimpleNamespace]:
    """Make a row's checkpoint: its path, and the sizes that its files had before they were cut."""

    def make(row: dict[str, Any]) -> SimpleNamespace:
        maker = Maker(tmp_path / row.get("as", "model"), layouts())
        maker.base(row["base"])
        for step in row.get("do", []):
            maker.step(step)
        path = maker.write() / row.get("path", "")
        return SimpleNamespace(path=path, whole=maker.whole)

    return make
