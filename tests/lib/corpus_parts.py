"""The parts that the tables of checkpoints are written in, as text: tensors, pickles, tokenizers.

A tensor is `DTYPE dims… =fill`. Without a type it is BF16, without a fill a hole of zeros. A fill
is a number, written as the type has it, or bytes as `xHEX`, and is repeated. In names `{a-b}`
stands for each number from a to b, `{a,b}` for each word.
"""

import io
import json
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

from volta_runtime.checkpoint.safetensors import tensor_bytes

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 4965799096\n"
PICKLES = {
    "harmless": b"\x80\x02ccollections\nOrderedDict\n)R.",
    # torch.save's before it took to zip: a mark, a version, the system, the object, its storages.
    "legacy": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}q\x00."
    b"\x80\x02ccollections\nOrderedDict\n)R.\x80\x02]q\x00.",
    "system": b"cos\nsystem\n(S'id > /tmp/pwned'\ntR.",
    # The same by names that are made of strings, as protocol 4 has them.
    "hidden": b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x8c\x02id\x94\x85\x94R\x94.",
    "eval": b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    "cut": b"\x80\x02ccollections\nOrderedDi",
}
TEMPLATE = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}"


def expand(name: str) -> list[str]:
    """All that braces stand for, the innermost first."""
    found = re.search(r"\{([^{}]*)\}", name)
    if not found:
        return [name]
    ends = re.fullmatch(r"(\d+)-(\d+)", found[1])
    numbers = range(int(ends[1]), int(ends[2]) + 1) if ends else []
    choices = [str(number) for number in numbers] if ends else found[1].split(",")
    chosen = [name[: found.start()] + choice + name[found.end() :] for choice in choices]
    return list(dict.fromkeys(each for one in chosen for each in expand(one)))


def encoded(dtype: str, value: str) -> bytes:
    if value.startswith("x"):
        return bytes.fromhex(value[1:])
    number = float(value)
    if dtype == "BF16":
        return struct.pack("<f", number)[2:]
    codes = {"F32": "f", "F16": "e", "U8": "B", "I32": "i", "I64": "q"}
    return struct.pack(f"<{codes[dtype]}", number if dtype[0] == "F" else int(number))


def tensor(text: str) -> list[Any]:
    """[dtype, shape, bytes or None]."""
    body, _, fill = str(text).partition("=")
    words = body.split()
    dtype = words.pop(0) if words and not words[0].isdigit() else "BF16"
    shape = [int(word) for word in words]
    if not fill:
        return [dtype, shape, None]
    one = encoded(dtype, fill.strip())
    return [dtype, shape, one * (tensor_bytes(dtype, shape) // len(one))]


def held_tensors(file: Path) -> dict[str, list[Any]]:
    """All tensors of a safetensors file, each as tensor() gives it."""
    raw = file.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    return {
        name: [
            entry["dtype"],
            entry["shape"],
            raw[slice(*(start + n for n in entry["data_offsets"]))],
        ]
        for name, entry in json.loads(raw[8:start]).items()
        if name != "__metadata__"
    }


def kit(tokens: int = 200, template: Any = TEMPLATE) -> dict[str, Any]:
    """What lies beside the weights of a chat model on the Hub."""
    vocabulary = {f"t{number}": number for number in range(tokens)}
    return {
        "tokenizer.json": {
            "version": "1.0",
            "added_tokens": [],
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **({"chat_template": template} if template else {}),
        },
        "README.md": "---\nlicense: apache-2.0\n---\n# A model\n",
        ".gitattributes": "*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
    }


def put(content: Any, path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for parent in parents:
        content = (
            content[int(parent)] if isinstance(content, list) else content.setdefault(parent, {})
        )
    if value == "UNSET":
        content.pop(last, None)
    else:
        content[last] = value


def sentencepiece(pieces: int) -> bytes:
    """A model of so many pieces: field 1 of each is its text, 2 its score."""
    held = b""
    for number in range(pieces):
        text = f"p{number}".encode()
        piece = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", -number)
        held += b"\x0a" + bytes([len(piece)]) + piece
    return held


def pickled(kind: str) -> bytes:
    """One of PICKLES, bare or, after `zip `, as torch.save lays it."""
    zipped, _, name = kind.rpartition(" ")
    if not zipped:
        return PICKLES[name]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("archive/data.pkl", PICKLES[name])
        archive.writestr("archive/version", "3\n")
    return held.getvalue()


def gguf_value(value: Any) -> Any:
    """`u16 N` is a number of two bytes, `tokens N` a vocabulary; all else is itself."""
    if isinstance(value, str) and value.startswith("u16 "):
        return struct.pack("<IH", 2, int(value[4:]))
    if isinstance(value, str) and value.startswith("tokens "):
        return [f"t{number}" for number in range(int(value[7:]))]
    return value
