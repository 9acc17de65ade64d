"""bitsandbytes: what was quantised while it was loaded, and saved so.

Source: transformers BitsAndBytesConfig.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import Reading, blanket
from volta_runtime.checkpoint.scheme import Scheme


def read(fields: Fields) -> Reading:
    """Read quantization_config."""
    eight = fields.flag("load_in_8bit", "_load_in_8bit")
    scheme = Scheme(
        format="bnb-int8" if eight else "bnb-nf4",
        file=fields.file,
        where=fields.where,
        bits=8 if eight else 4,
        blanket=True,
    )
    return blanket(fields, scheme, skip=fields.strings("llm_int8_skip_modules"))
