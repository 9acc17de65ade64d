"""The floating point types of scales, by their bits: what a pattern is worth, and how many of each.

Patterns of one sign are in the order of their values in every IEEE-like type, so that the least,
the greatest and the odd ones are found among integers, without a library for arrays.
"""

import sys
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import ldexp


@dataclass(frozen=True)
class FloatType:
    """One type: its bits from the top are a sign (where signed), the exponent and the mantissa.

    width: bytes of a value; code: of `array` for a pattern. mantissa: bits. nonfinite: the first
    pattern without sign that is NaN or infinite. An unsigned type is of exponents alone, without
    zero and subnormals.
    """

    width: int
    code: str
    mantissa: int
    bias: int
    nonfinite: int
    signed: bool = True

    @cached_property
    def sign(self) -> int:
        """The sign's bit, which a pattern of an unsigned type never has."""
        return 1 << (8 * self.width - self.signed)

    @cached_property
    def plain(self) -> range:
        """The patterns of positive values that are normal and finite, and not the very least."""
        return range(1 << self.mantissa, self.nonfinite)

    @cached_property
    def _plain_bytes(self) -> frozenset[int]:
        return frozenset(self.plain)

    def value(self, bits: int) -> float:
        """What a pattern is worth; nan for all that are not finite."""
        magnitude = bits & (self.sign - 1)
        if magnitude >= self.nonfinite:
            return float("nan")
        exponent, fraction = divmod(magnitude, 1 << self.mantissa)
        if self.signed and magnitude < self.plain.start:
            exponent = 1
        else:
            fraction += 1 << self.mantissa
        value = ldexp(fraction, exponent - self.bias - self.mantissa)
        return -value if bits & self.sign else value

    def patterns(self, data: bytes | memoryview) -> Mapping[int, int]:
        """The patterns in little-endian data, with how often each stands there.

        Of the plain ones there are but the least and the greatest, and their counts mean nothing.
        """
        plain = self.plain
        held = bytes(data)
        if len(held) == self.width:
            return {int.from_bytes(held, "little"): 1}
        if self.width == 1:
            present = set(held)
            usual = present & self._plain_bytes
            odd = {bits: held.count(bits) for bits in present - usual}
        else:
            values = array(self.code, held)
            if sys.byteorder == "big":
                values.byteswap()
            low, high = min(values), max(values)
            if low in plain and high in plain:
                return {low: 0, high: 0}
            usual = {bits for bits in values if plain.start <= bits < plain.stop}
            odd = Counter(bits for bits in values if not plain.start <= bits < plain.stop)
        return {**odd, min(usual): 0, max(usual): 0} if usual else odd


# By safetensors' names; F8_E4M3 has no infinity (torch's float8_e4m3fn).
FLOATS = {
    "F32": FloatType(4, "I", 23, 127, 0xFF << 23),
    "BF16": FloatType(2, "H", 7, 127, 0xFF << 7),
    "F16": FloatType(2, "H", 10, 15, 0x1F << 10),
    "F8_E5M2": FloatType(1, "B", 2, 15, 0x1F << 2),
    "F8_E4M3": FloatType(1, "B", 3, 7, 0x7F),
    "F8_E8M0": FloatType(1, "B", 0, 127, 0xFF, signed=False),
}
