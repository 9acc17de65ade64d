"""docs/formats.md, made of the rows: layout, formula, groups and the direction of each scale."""

import sys

from volta_runtime.checkpoint.formats import FORMATS, Parameter, WeightFormat

_HEAD = """\
# Weight formats

How each format lays a weight out in a checkpoint, and how its numbers are read. This page is made
of the rows in `runtime/volta_runtime/checkpoint/formats/`.

A format is recognised by the names, dtypes and shapes of a module's tensors, never by the size of
their numbers: whether a scale multiplies or divides follows from its name. Where two formats look
alike, the config decides.

Tensors are row-major: the last dimension of a shape is contiguous. Numbers of several bytes are
little-endian. Codes of E2M1 stand for 0, 0.5, 1, 1.5, 2, 3, 4 and 6, with the sign in bit 3; in
safetensors two lie in a byte, k in the low nibble and k + 1, the odd one, in the high. E4M3 has
1 sign, 4 exponent and 3 mantissa bits, bias 7 and no infinities; NaN is 0x7f and 0xff, and the
greatest number is 448. E8M0 is a power of two, 2^(code − 127), and 0xff is NaN. A product of such
scales may be subnormal or too large in FP16: fold them in FP32.

In the shapes, N are output features and K input features. G weights along K share a scale, and K is
a whole number of such groups; R and C are the rows and columns of a block, of which the last may be
cut off, as ⌈N/R⌉ says; b are the bits of a code. Nothing is padded but what ⌈⌉ rounds up. A stack
of experts has one more dimension in front of each shape. An index in brackets says which number of
a tensor is meant: n is the row of the weight, k its column; q is a code, z a zero point.

A row of a GGUF tensor is K weights in blocks that follow each other; a block is its fields, packed
in the order in which they are listed here, and the weights in it count from 0. Shapes are told
here as [N, K]: the file has them the other way round. A tensor that ends in .scale beside one that
ends in .weight multiplies it: [1], or [experts] of a stack of them.

| format | what it is | bits a weight |
|---|---|---|
"""

_ROLES = {
    "codes": "the weight",
    "scale": "scales",
    "global": "scale of the tensor",
    "zero": "zero points",
    "order": "the group of each column",
    "layout": "the weight's layout",
    "columns": "factors of the inputs",
    "table": "what a code stands for",
    "activation": "for the inputs",
}


def markdown() -> str:
    """The whole page."""
    table = "".join(
        f"| [{row.name}](#{row.name}) | {row.title} | {_bits(row)} |\n" for row in FORMATS
    )
    return _HEAD + table + "".join(_section(row) for row in FORMATS)


def _section(row: WeightFormat) -> str:
    lines = [f"\n## {row.name}\n", f"{row.title}.\n", f"    {row.formula}\n"]
    if row.container == "safetensors":
        lines.append("| tensor | dtype | shape | what | in the formula |\n|---|---|---|---|---|")
        lines[-1] += "".join(_line(parameter) for parameter in row.parameters) + "\n"
    if row.block:
        weights = row.group[1] if row.group else 1
        fields = ", ".join(
            f"`{name}` {kind}" for name, kind in map(str.split, row.block.split(","))
        )
        size = round(row.bits * weights / 8)
        lines.append(f"A block of {weights} weights along K takes {size} bytes: {fields}.\n")
    elif groups := _groups(row):
        lines.append(f"Groups: {groups}.\n")
    if row.refused:
        lines.append(f"Not decoded: {row.refused}.\n")
    if row.note:
        lines.append(f"{row.note}\n")
    lines.append(f"Source: {row.source}.\n")
    return "\n".join(lines)


def _line(parameter: Parameter) -> str:
    names = " or ".join(f"`{name}`" for name in (parameter.name, *parameter.also))
    shapes = " or ".join(parameter.shapes) or "any"
    direction = f"{parameter.direction}s".replace("ys", "ies") if parameter.direction else ""
    what = _ROLES[parameter.role] + (", may be absent" if parameter.optional else "")
    return f"\n| {names} | {' '.join(parameter.dtypes)} | {shapes} | {what} | {direction} |"


def _groups(row: WeightFormat) -> str:
    if row.group is not None:
        return f"blocks of {row.group[1]} weights"
    sizes = ", ".join(f"{name} = {size}" for name, size in row.sizes.items())
    if sizes:
        return f"{sizes}, unless the config declares another and the tensors agree"
    free = any("G" in shape for parameter in row.parameters for shape in parameter.shapes)
    return "any G, as the shape of the scales tells" if free else ""


def _bits(row: WeightFormat) -> str:
    return f"{row.bits:.4g}"


if __name__ == "__main__":
    sys.stdout.write(markdown())
