"""fp8 and fbgemm_fp8: E4M3 weights, a scale for each block where the config has block sizes.

Source: transformers quantizers/quantizer_finegrained_fp8.py; vllm quantization/fp8.py.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import Reading, blanket
from volta_runtime.checkpoint.scheme import Scheme


def read(fields: Fields) -> Reading:
    """Read quantization_config."""
    skip = fields.strings("modules_to_not_convert", "ignored_layers", "ignore")
    kind = fields.text("fmt") or "e4m3"
    if kind != "e4m3":
        fields.unknown("fmt", kind, ["e4m3"])
        scheme = Scheme(f"fp8-{kind}", fields.file, fields.where, blanket=True)
        return blanket(fields, scheme, skip=skip)
    block = fields.numbers("weight_block_size", 2)
    by_row = fields.text("quant_method") == "fbgemm_fp8"
    scheme = Scheme(
        format="fp8-block" if block else "fp8-channel" if by_row else "fp8-tensor",
        also=() if block or by_row else ("modelopt-fp8", "float-quantized", "fp8-channel"),
        file=fields.file,
        where=fields.where,
        bits=8,
        group=(block[0], block[1]) if block else None,
        activations="float8",
        blanket=True,
    )
    return blanket(fields, scheme, skip=skip)
