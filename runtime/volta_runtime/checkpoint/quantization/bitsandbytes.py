"""bitsandbytes: what was quantised while it was loaded, and saved so.

Source: transformers BitsAndBytesConfig.
"""

from volta_runtime.checkpoint.quantization.fields import Fields
from volta_runtime.checkpoint.quantization.reading import Reading, blanket
from volta_runtime.checkpoint.scheme import Scheme


def read(fields: Fields) -> Reading:
    """Read quantization_config."""
    eight = fields.flag("load_in_8bit", "_load_in_8bit")
    if eight:
        fields.note(
            f"{fields.place('load_in_8bit')} is none that Volta knows",
            expected="load_in_4bit",
            found="load_in_8bit",
            level="warn",
        )
        return Reading()
    scheme = Scheme(
        format="bnb-nf4",
        file=fields.file,
        where=fields.where,
        bits=4,
        blanket=True,
    )
    return blanket(fields, scheme, skip=fields.strings("llm_int8_skip_modules"))
