"""Reading GGUF through the `gguf` library, with errors that say what is wrong with the file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from volta_runtime.convert.errors import ConvertError

# Source types this conversion is tested with.
TENSOR_TYPES = ("F32", "F16", "Q8_0", "Q4_1")

_MAGIC = b"GGUF"


class GGUFSource:
    """A GGUF file: metadata by key, tensors by name.

    shapes: each tensor's shape in C order ([N, K] for a linear layer).
    """

    def __init__(self, path: Path) -> None:
        """Read metadata and tensor headers; raises ConvertError for a file that is not sound."""
        self.path = path
        try:
            with path.open("rb") as stream:
                magic = stream.read(4)
        except OSError as error:
            raise ConvertError(f"{path}: cannot read: {error.strerror}") from error
        if magic != _MAGIC:
            raise ConvertError(
                f"{path}: begins with {magic!r}, expected {_MAGIC!r}: not a GGUF file;"
                " download it again"
            )
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
            raise ConvertError(
                f"{path}: {path.stat().st_size} bytes that are not a whole GGUF file:"
                f" truncated or damaged ({error}); download it again"
            ) from error
        self._fields: Mapping[str, Any] = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        for name, tensor in self._tensors.items():
            if tensor.tensor_type.name not in TENSOR_TYPES:
                raise ConvertError(
                    f"{path}: tensor {name} has type {tensor.tensor_type.name}, which this version"
                    f" does not convert; supported: {', '.join(TENSOR_TYPES)}"
                )
        self.shapes = {
            name: tuple(int(size) for size in reversed(tensor.shape))
            for name, tensor in self._tensors.items()
        }

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value, or the default when the file has none."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def require(self, key: str) -> Any:
        """A metadata value; raises ConvertError naming the key when the file has none."""
        if key not in self._fields:
            raise ConvertError(f"{self.path}: metadata {key} is missing; download another build")
        return self.get(key)

    def tensor(self, name: str) -> npt.NDArray[np.float32]:
        """One tensor, decoded to FP32."""
        tensor = self._tensors[name]
        values: npt.NDArray[np.float32] = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return values.reshape(self.shapes[name]).astype(np.float32, copy=False)
