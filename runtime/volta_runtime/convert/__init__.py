"""Makes an NVFP4 checkpoint out of a GGUF file: `volta-serve convert`."""

from volta_runtime.convert.convert import convert_gguf
from volta_runtime.convert.errors import ConvertError

__all__ = ["ConvertError", "convert_gguf"]
