"""What a Tesla V100 allows: how many warps are on an SM, and how fast weights can go by.

Figures of the SXM2 card at its boost clock; a PCIe card has 1.38 GHz. Sources: NVIDIA's V100
whitepaper, the throughput table of the CUDA C++ Programming Guide (compute capability 7.0) and, for
which pipe takes which instruction, the guide of Nsight Compute.
"""

import re
from collections import Counter

from sass import Code

SMS = 80
CLOCK = 1.53e9  # Hz
SCHEDULERS = 4  # of an SM, each issues an instruction of a warp per clock
LANES = 32
BANDWIDTH = 900e9  # bytes/s
REGISTERS, SHARED = 65536, 96 * 1024  # of an SM
WARPS, BLOCKS = 64, 32  # on an SM at most
_REGISTER_UNIT, _SHARED_UNIT = 256, 256  # registers of a warp, bytes of a block

# Clocks for which an instruction of a warp holds its pipe, of which each scheduler has one; the SM
# has one for memory, so a scheduler's share of it is a quarter. An mma.m8n8k4 is four HMMA where it
# sums in FP32, two where in FP16.
_PIPES = (
    ("tensor", r"HMMA\.\w+\.F16\.F16", 4),
    ("tensor", r"HMMA", 2),
    ("fp16", r"HADD2|HMUL2|HFMA2|HSET", 2),
    ("fma", r"FFMA|FMUL|FADD|IMAD|IMUL", 2),
    ("special", r"MUFU|I2F|F2I|F2F|I2I|FRND|POPC|FLO|BREV", 8),
    ("memory", r"LD|ST|ATOM|RED|SHFL", 4),
    ("control", r"BRA|BSSY|BSYNC|BMOV|BAR|EXIT|NOP|CALL|RET|WARPSYNC|YIELD|DEPBAR|MEMBAR|CS2R", 1),
    ("alu", r"", 2),  # integers, bits, comparisons, selections, moves
)


def warps_per_sm(registers: int, shared: int, threads: int) -> int:
    """How many warps of such blocks an SM holds at a time."""
    warps = -(-threads // LANES)
    of_warp = -(-registers * LANES // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = SCHEDULERS * (REGISTERS // SCHEDULERS // of_warp) // warps
    of_block = -(-shared // _SHARED_UNIT) * _SHARED_UNIT
    by_shared = SHARED // of_block if of_block else BLOCKS
    return warps * min(BLOCKS, WARPS // warps, by_registers, by_shared)


def clocks(code: Code) -> dict[str, int]:
    """Clocks of a scheduler for which a warp that runs through code holds it ("issue") and each of
    its pipes: they go on side by side, so the largest bounds the time.
    """
    held = Counter(issue=len(code))
    for one in code:
        pipe, _, each = next(row for row in _PIPES if re.match(row[1], one.opcode))
        held[pipe] += each
    return dict(held)


def weights_per_second(clocks_per_weight: float) -> float:
    """How many weights the GPU takes whose lanes need so many clocks for one."""
    return SMS * SCHEDULERS * LANES * CLOCK / clocks_per_weight


def read_per_second(bits: float) -> float:
    """How many weights of so many bits memory delivers."""
    return BANDWIDTH / (bits / 8)


UNITS = {  # products a clock of an SM, and of how many rows of x they take a multiple
    "FFMA": (64, 1),
    "HFMA2": (128, 1),
    "HMMA.884": (512, 8),
}


def multiplied_per_second(unit: str, m: int) -> float:
    """How many weights a unit multiplies by m rows of x, with nothing else to do."""
    per_clock, filled = UNITS[unit]
    return SMS * per_clock * CLOCK / (-(-m // filled) * filled)
