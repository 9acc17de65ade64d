"""Lists of CPUs or NUMA nodes, in the kernel's form: 0-19,40-59."""

import re

_MOST = 1 << 16  # Linux knows 8192 CPUs at most (NR_CPUS of x86-64)


def parse(text: str) -> set[int]:
    """Return the numbers of a list. Raises ValueError where it is none."""
    found: set[int] = set()
    for part in re.split(r"[,\s]+", text.strip()):
        if part:
            first, _, last = part.partition("-")
            if int(last or first) >= _MOST:
                raise ValueError(f"{part}: no list of CPUs")
            found.update(range(int(first), int(last or first) + 1))
    return found


def write(numbers: set[int]) -> str:
    """Return the list of these numbers."""
    parts: list[str] = []
    ordered = sorted(numbers)
    for number in ordered:
        if number - 1 in numbers:
            continue
        last = number
        while last + 1 in numbers:
            last += 1
        parts.append(f"{number}-{last}" if last > number else f"{number}")
    return ",".join(parts)


def from_systemd(text: str) -> str:
    """Return what `systemctl show` prints as a kernel list.

    Blanks stand between the ranges; systemd before 242 prints a mask, in bytes of two hexadecimal
    digits, lowest CPUs first, in whole words of eight bytes.
    """
    if re.fullmatch(r"(?:[0-9a-f]{16})+", text):
        mask = int.from_bytes(bytes.fromhex(text), "little")
        return write({bit for bit in range(mask.bit_length()) if mask >> bit & 1})
    return write(parse(text))
