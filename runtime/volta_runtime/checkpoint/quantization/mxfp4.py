"""mxfp4: the experts of gpt-oss as blocks and scales, 32 weights to a scale.

Source: openai/gpt-oss config.json; transformers quantizers/quantizer_mxfp4.py.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import Reading
from volta_runtime.checkpoint.quantization.targets import Entry, part
from volta_runtime.checkpoint.scheme import Scheme


def read(fields: Fields) -> Reading:
    """Read quantization_config."""
    scheme = Scheme(
        format="mxfp4-blocks",
        file=fields.file,
        where=fields.where,
        bits=4,
        group=(1, 32),
        blanket=True,
    )
    names = fields.strings("modules_to_not_convert")
    return Reading([([Entry("class", "Experts")], scheme)], [part(name) for name in names])
