"""awq: 4 bits with zero points; AutoAWQ names some fields otherwise than transformers does.

Source: casper-hansen/AutoAWQ models/_config.py; transformers AwqConfig.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import Reading, blanket
from volta_runtime.checkpoint.scheme import Scheme

# The formats by version, of which some choose a kernel only.
_FORMATS = {**dict.fromkeys(("gemm", "marlin", "exllama", "ipex", ""), "awq"), "gemv": "awq-gemv"}


def read(fields: Fields) -> Reading:
    """Read quantization_config, or AutoAWQ's quant_config.json."""
    bits = fields.number("bits", "w_bit")
    size = fields.number("group_size", "q_group_size")
    version = fields.text("version").lower()
    known = bits in (4, None) and version in _FORMATS
    if not known:
        fields.unknown(
            "version",
            f"{version or 'gemm'}{f' with {bits} bits' if bits else ''}",
            ["gemm with 4 bits", "gemv with 4 bits"],
        )
    scheme = Scheme(
        format=_FORMATS[version] if known else f"awq-{version or 'gemm'}-{bits}",
        file=fields.file,
        where=fields.where,
        bits=bits,
        group=None if size is None else (1, size) if size > 0 else (1, 0),
        symmetric=not fields.flag("zero_point") if "zero_point" in fields else False,
        blanket=True,
    )
    return blanket(fields, scheme)
