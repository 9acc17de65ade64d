"""The tables of docs/kernels.md: what is built, and what a V100 can do with it."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count, groupby

import v100
from limits import Instance
from sass import matching

MULTIPLIERS = (1, 2, 4, 8, 16)  # rows of x that the table of units shows
BITS = (4.5, 8.0, 16.0)  # of a weight


def refreshed(page: str, instances: list[Instance], release: str) -> str:
    """The page with its tables made anew, between <!-- NAME, ... --> and <!-- end -->."""
    tables = {
        "instances": lambda: instance_table(instances),
        "units": unit_table,
        "decode": lambda: decode_table(instances),
    }
    for name, make in tables.items():
        head = f"<!-- {name}, by tests/kernels/audit.py from nvcc {release} -->"
        block = re.compile(rf"<!-- {name}\b.*?<!-- end -->", re.DOTALL)
        made = "\n\n".join((head, make(), "<!-- end -->"))
        page, times = block.subn(lambda _, made=made: made, page)
        assert times == 1, f"{times} blocks <!-- {name} -->, needs one"
    return page


def release_of(page: str) -> str:
    """The release of nvcc that a page's tables were made from."""
    return re.search(r"<!-- instances, .* from nvcc (\S+) -->", page)[1]


def instance_table(instances: list[Instance]) -> str:
    """A line for each row of audit.yaml, with the least and the most of its instances."""
    lines = []
    for _, group in groupby(instances, lambda instance: instance.row["kernel"]):
        family = list(group)
        names = dict.fromkeys(one.kernel.name.partition("<")[0] for one in family)
        ranges = (_range(map(measure, family)) for measure in _MEASURES.values())
        lines.append(
            (
                ", ".join(f"`{name}`" for name in names),
                family[0].row["does"],
                str(len(family)),
                *ranges,
            )
        )
    return _table(("kernel", "what it does", "instances", *_MEASURES), lines)


def shared_bytes_per_hmma(instance: Instance) -> float | None:
    """What a warp loads of shared memory for a tensor core instruction, in the main loop where that
    has any, or over all.
    """
    for code in (instance.kernel.main_loop, instance.kernel.code):
        if hmma := len(matching(code, "HMMA")):
            return v100.LANES * sum(one.bytes for one in matching(code, "LDS")) / hmma
    return None


def wide_share(instance: Instance) -> float | None:
    """How many of a hundred global loads in the code are of 16 bytes."""
    loads = instance.kernel.count("LDG")
    return 100 * instance.kernel.count(r"LDG\S*\.128") / loads if loads else None


_MEASURES: dict[str, Callable[[Instance], float | None]] = {  # None where there is nothing to tell
    "threads": lambda one: one.threads,
    "registers": lambda one: one.kernel.registers,
    "stack": lambda one: one.kernel.stack + one.kernel.local,
    "shared memory": lambda one: one.shared or None,
    "warps/SM": lambda one: one.warps,
    "LDG.128": lambda one: one.kernel.count(r"LDG\S*\.128"),
    "% of loads": wide_share,
    "STG.128": lambda one: one.kernel.count(r"STG\S*\.128") or None,
    "HMMA": lambda one: one.kernel.count("HMMA") or None,
    "LDS bytes/HMMA": shared_bytes_per_hmma,
}


def unit_table() -> str:
    """How many weights each unit multiplies by M rows of x in a second, and up to which M memory is
    slower.
    """
    head = ("unit", "products/clock", "TFLOP/s", *(f"M = {m}" for m in MULTIPLIERS))
    memory = tuple(f"{bits:g} bits ({_tera(v100.read_per_second(bits))})" for bits in BITS)
    lines = [
        (
            unit,
            str(per_clock),
            f"{2 * per_clock * v100.SMS * v100.CLOCK / 1e12:.1f}",
            *(_tera(v100.multiplied_per_second(unit, m)) for m in MULTIPLIERS),
            *(f"M ≤ {_most(unit, bits)}" for bits in BITS),
        )
        for unit, (per_clock, _) in v100.UNITS.items()
    ]
    return _table((*head, *memory), lines)


def _most(unit: str, bits: float) -> int:
    """The largest M for which a unit keeps up with memory."""
    enough = (
        m for m in count(1) if v100.multiplied_per_second(unit, m) < v100.read_per_second(bits)
    )
    return next(enough) - 1


@dataclass(frozen=True)
class Decode:
    """The main loop of a kernel that multiplies weights by m rows of x.

    instructions: for a weight. ratio: of the rate at which the GPU can issue them, or the busiest
    pipe take them, to that of memory.
    """

    label: str
    bits: float
    m: int
    instructions: float
    ratio: float


def decodes(instances: list[Instance]) -> list[Decode]:
    """All whose row of audit.yaml says what a turn of the loop decodes."""
    return [decode(instance) for instance in instances if "decode" in instance.row]


def decode(instance: Instance) -> Decode:
    """Measure a main loop. Raises ValueError where no whole number of weights fits it."""
    row, loop = instance.row["decode"], instance.kernel.main_loop
    counts = {f"{op.lower()}128": len(matching(loop, rf"{op}.*\.128")) for op in ("LDG", "LDS")}
    weights = instance.number(row["weights"], **counts)
    if weights < 1 or weights != int(weights):
        raise ValueError(f"{instance.kernel.name}: {weights} weights a turn, by {row['weights']}")
    bits = instance.number(row["bits"])
    computed = v100.weights_per_second(max(v100.clocks(loop).values()) / weights)
    return Decode(
        row["label"].format(**instance.names),
        bits,
        instance.number(row["m"]),
        len(loop) / weights,
        computed / v100.read_per_second(bits),
    )


def decode_table(instances: list[Instance]) -> str:
    """A line for a label, a column for each M: instructions a weight, and the ratio."""
    measured = decodes(instances)
    columns = sorted({one.m for one in measured})
    lines: dict[tuple[str, float], dict[int, str]] = {}
    for one in measured:
        cells = lines.setdefault((one.label, one.bits), {})
        cells[one.m] = f"{one.instructions:.1f} ({one.ratio:.1f})"
    return _table(
        ("weights", "bits", *(f"M = {m}" for m in columns)),
        [
            (label, f"{bits:g}", *(cells.get(m, "") for m in columns))
            for (label, bits), cells in lines.items()
        ],
    )


def _tera(number: float) -> str:
    return f"{number / 1e12:.2f}"


def _range(numbers: Iterable[float | None]) -> str:
    """The least and the most, empty for none."""
    ordered = sorted(n for n in numbers if n is not None)
    return "–".join(dict.fromkeys(f"{n:.0f}" for n in ordered[:1] + ordered[-1:]))


def _table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> str:
    rule = tuple("---" for _ in head)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))
