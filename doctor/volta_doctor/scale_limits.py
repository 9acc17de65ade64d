"""What FP16 makes of scales, and how far those of one layer may lie apart: one place for both.

The checks of a checkpoint read the scales themselves, the rules of `why` find them in texts.
"""

from collections.abc import Iterable

# FP16 on Volta, IEEE 754 binary16.
HALF_MAX = 65504.0
HALF_NORMAL = 2.0**-14  # below it a value has fewer than 11 bits
HALF_LEAST = 2.0**-24  # below half of it a value becomes zero
# An E4M3 scale has 4 bits (3 and the hidden one); so many remain in FP16 down to here.
HALF_FOUR_BITS = 2.0**-21

# Of the largest to the smallest global scale of one layer, above which the loss shows (ours).
APART = 1.10


def spread(values: Iterable[float]) -> float:
    """How many times the smallest the largest is; values are positive. 1 for one value or none."""
    held = list(values)
    return max(held) / min(held) if held else 1.0
