"""What a header tells of one tensor."""

from dataclasses import dataclass
from pathlib import Path

# Floating-point dtypes as safetensors names them, by torch's words, which configs have.
FLOATS_BY_NAME = {
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float8_e4m3fn": "F8_E4M3",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as its file describes it; its data is not read.

    dtype is the file format's own name: safetensors' ("F8_E4M3") or ggml's ("Q4_K"). shape is in
    the order of PyTorch, slowest dimension first ([out, in] of a linear layer), for GGUF too, which
    stores it the other way round. offsets are the [begin, end) bytes within `file`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offsets: tuple[int, int]

    @property
    def bytes(self) -> int:
        """How many bytes its data takes in the file."""
        return self.offsets[1] - self.offsets[0]
