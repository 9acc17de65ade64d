"""What a dequantiser is handed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Stored:
    """A weight's tensors as they lie on disk, by the names of their row's parameters.

    E4M3 and E8M0 are uint8, BF16 is uint16. block: (rows, columns) that share a scale, in formats
    whose scales are of blocks. gptq_v2: zeros mean what they are.
    """

    arrays: Mapping[str, Array]
    block: tuple[int, int] = (1, 1)
    gptq_v2: bool = False

    def __getitem__(self, name: str) -> Array:
        return self.arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self.arrays
