"""What is left of 4-bit floats' scales in an engine that rounds their product to FP16."""

from collections.abc import Iterator
from dataclasses import dataclass

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.preflight.scale_tensors import Scale, loaders, scales_of
from volta_doctor.preflight.subject import Subject
from volta_doctor.scale_limits import HALF_FOUR_BITS, HALF_LEAST, HALF_MAX, HALF_NORMAL
from volta_doctor.words import several


@dataclass(frozen=True)
class Product:
    """The least and the greatest product of a tensor's scales with its global scale."""

    scale: Scale
    least: float
    high: float

    @property
    def floor(self) -> float:
        """Below it FP16 keeps less than a scale has: an E8M0 one is a power of two, of one bit."""
        return HALF_FOUR_BITS if self.scale.info.dtype == "F8_E4M3" else HALF_LEAST


def folded(subject: Subject, row: Row) -> Iterator[Finding]:
    """Findings on products that FP16 cannot hold, for the engines that make such products."""
    by_format: dict[str, list[Product]] = {}
    for product in _products(subject):
        if row_of := product.scale.module.format:
            by_format.setdefault(row_of.name, []).append(product)
    for name, products in by_format.items():
        engines = loaders(subject, name)
        rounding = [e.title for e in engines if e.scaling and e.scaling.folded == "float16"]
        unknown = [e.title for e in engines if subject.engine and e.scaling is None]
        infinite = [p for p in products if p.high > HALF_MAX]
        lost = [p for p in products if p.least < p.floor]
        fewer = [p for p in products if p.floor <= p.least < HALF_NORMAL]
        if rounding:
            yield from _told(row, " and ".join(rounding), infinite, lost, fewer)
        elif unknown and (infinite or lost):
            first = (infinite + lost)[0]
            text = (
                f"FP16 cannot hold all products of scales of {name}, and it is not known whether"
                f" {unknown[0]} rounds them to it."
            )
            yield row.unknown(text, subject=first.scale.info.name)


def _told(
    row: Row, who: str, infinite: list[Product], lost: list[Product], fewer: list[Product]
) -> Iterator[Finding]:
    held = f"{HALF_NORMAL:.1e} to {HALF_MAX:g} in FP16"
    if infinite:
        worst = max(infinite, key=lambda product: product.high)
        text = (
            f"Scales become infinite in {who}, where they are rounded to FP16: in"
            f" {several(len(infinite), 'tensor')}."
        )
        seen = worst.scale.evidence(held, f"products up to {worst.high:.3g}")
        yield row.warn(text, seen, subject=worst.scale.info.name, count=len(infinite))
    for products, make, what in (
        (lost, row.warn, "lose bits that they have, or become 0,"),
        (fewer, row.info, "are subnormal, which costs bits of the global scale alone,"),
    ):
        if products:
            worst = min(products, key=lambda product: product.least)
            text = (
                f"The smallest scales {what} in {who}, where they are rounded to FP16: in"
                f" {several(len(products), 'tensor')}."
            )
            seen = worst.scale.evidence(held, f"products down to {worst.least:.3g}")
            yield make(text, seen, subject=worst.scale.info.name, count=len(products))


def _products(subject: Subject) -> Iterator[Product]:
    factors = {scale.module.name: _factor(scale) for scale in scales_of(subject, "global")}
    for scale in scales_of(subject, "scale"):
        values, row = scale.values, scale.module.format
        if row is None or "fp4" not in row.name or scale.plain or values is None:
            continue
        factor = factors.get(scale.module.name, (1.0, 1.0))
        if factor and values.least is not None and values.high is not None:
            yield Product(scale, values.least * factor[0], values.high * factor[1])


def _factor(scale: Scale) -> tuple[float, float] | None:
    """The least and the greatest factor of a global scale; None where it is none, or not told."""
    values = scale.values
    if (
        not scale.parameter.direction
        or values is None
        or values.nans
        or values.low is None
        or values.high is None
    ):
        return None
    if values.low <= 0:
        return None
    if scale.parameter.direction == "divide":
        return 1 / values.high, 1 / values.low
    return values.low, values.high
