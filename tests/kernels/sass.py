"""The sm_70 machine code of a library, kernel by kernel, as cuobjdump lists it."""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

_USAGE = re.compile(
    r"Function (\S+):\s+REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+)"
    r" LOCAL:(?P<local>\d+)"
)
_FUNCTION = re.compile(r"\s+Function : (\S+)")
_INSTRUCTION = re.compile(
    r"\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<guard>@!?U?P\w+ +)?(?P<opcode>[A-Z][\w.]*)"
    r"(?P<rest>[^;]*);"
)
_TARGET = re.compile(r"0x([0-9a-f]+)\s*$")
_SIZE = 16  # of an instruction
_PRODUCTS = "HMMA|HFMA2|FFMA"
_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}  # 4 where none is said


class Instruction(NamedTuple):
    """target: where a branch goes. leaves: whether it never goes on to the next."""

    address: int
    opcode: str
    target: int | None
    leaves: bool

    @property
    def bytes(self) -> int:
        """What a lane moves by a load or a store."""
        return next((_BYTES[p] for p in self.opcode.split(".") if p in _BYTES), 4)


Code = tuple[Instruction, ...]


def matching(code: Code, pattern: str) -> list[Instruction]:
    """The instructions of code whose opcode starts so."""
    begins = re.compile(pattern).match
    return [one for one in code if begins(one.opcode)]


@dataclass(frozen=True)
class Kernel:
    """An instance of a kernel. registers: of a thread; stack and local: bytes of a thread;
    shared: static bytes of a block.
    """

    name: str
    registers: int
    stack: int
    shared: int
    local: int
    code: Code

    def count(self, pattern: str) -> int:
        """How many instructions have an opcode that starts so."""
        return len(matching(self.code, pattern))

    @cached_property
    def main_loop(self) -> Code:
        """A usual turn of the innermost loop with the most multiplications, else memory accesses.

        A loop is what branches back to its start span. Without loops: ().
        """
        last_of: dict[int, int] = {}
        for one in self.code:
            if one.target is not None and one.target < one.address:
                last_of[one.target] = max(one.address, last_of.get(one.target, 0))
        innermost = [
            (first, last)
            for first, last in last_of.items()
            if not any(first < inner and end <= last for inner, end in last_of.items())
        ]
        bodies = [tuple(i for i in self.code if a <= i.address <= b) for a, b in innermost]
        return _usual_turn(max(bodies, key=_work, default=()))


def _usual_turn(body: Code) -> Code:
    """What is run through: of all ways from the start of a loop back to it the one with the most
    multiplications, of those one that loads the most bytes, of those the shortest. So nothing is
    counted that is for odd sizes alone.
    """
    if not body:
        return body
    start = body[0].address
    best: dict[
        int, tuple[tuple[int, int, int], int]
    ] = {}  # from an address: worth, the next address
    for one in reversed(body):
        ways = []
        if one.target == start:
            ways.append(((0, 0, 0), start))
        elif one.target in best:
            ways.append((best[one.target][0], one.target))
        if not one.leaves and one.address + _SIZE in best:
            ways.append((best[one.address + _SIZE][0], one.address + _SIZE))
        if ways:
            (products, loaded, less), after = max(ways)
            products += bool(re.match(_PRODUCTS, one.opcode))
            loaded += one.bytes if one.opcode.startswith("LDG") else 0
            best[one.address] = (products, loaded, less - 1), after
    at, turn = start, {one.address: one for one in body}
    taken = [turn[at]]
    while (at := best[at][1]) != start:
        taken.append(turn[at])
    return tuple(taken)


def _work(body: Code) -> tuple[int, int, int]:
    return (
        len(matching(body, _PRODUCTS)),
        len(matching(body, "LDG|LDS|STG|STS")),
        len(body),
    )


def kernels(library: Path, cuobjdump: Path) -> list[Kernel]:
    """All kernels of a library, by name."""

    def dump(option: str) -> str:
        command = [cuobjdump, option, "-arch", "sm_70", library]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return read(dump("-res-usage"), dump("-sass"))


def read(usage: str, listing: str) -> list[Kernel]:
    """Put together what cuobjdump -res-usage and -sass say."""
    codes = dict(_functions(listing.splitlines()))
    rows = list(_USAGE.finditer(usage))
    names = _demangled([row[1] for row in rows])
    made = [
        Kernel(name, code=codes[row[1]], **{k: int(v) for k, v in row.groupdict().items()})
        for name, row in zip(names, rows, strict=True)
    ]
    return sorted(made, key=lambda kernel: _natural(kernel.name))


def _functions(lines: Iterable[str]) -> Iterator[tuple[str, Code]]:
    name, code = "", []
    for line in lines:
        if found := _INSTRUCTION.match(line):
            opcode = found["opcode"]
            target = _TARGET.search(found["rest"]) if opcode.startswith("BRA") else None
            code.append(
                Instruction(
                    int(found["address"], 16),
                    opcode,
                    int(target[1], 16) if target else None,
                    opcode in ("BRA", "EXIT") and not found["guard"],
                )
            )
        elif found := _FUNCTION.match(line):
            if name:
                yield name, tuple(code)
            name, code = found[1], []
    if name:
        yield name, tuple(code)


def _demangled(names: list[str]) -> list[str]:
    """As in the source: gemv<Nvfp4, 1, 2>, without parameters and namespaces."""
    done = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    )
    return [short(line) for line in done.stdout.splitlines()]


def short(signature: str) -> str:
    """The name and template arguments of a demangled signature."""
    text = re.sub(r"\(anonymous namespace\)::|\w+::", "", signature).replace("> >", ">>")
    depth = 0
    for at, character in enumerate(text):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return text[:at].removeprefix("void ")
    return text


def _natural(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
