"""What a config promises of one module's weight."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Scheme:
    """How a config says that a module is quantised; a field that it does not tell is None.

    format: the row of formats.FORMATS that the promise means; where it fits several (a FP8 weight
        whose scales may be per tensor or per channel), the first that the tensors may be. Where no
        row does, the config's own word.
    bits, symmetric: of a weight. group: weights that share a scale, (rows, columns): (1, 16),
        (128, 128), (1, 0) for a whole row, (0, 0) for the whole tensor.
    scale_dtype: as safetensors names it ("F32"), where the config names one.
    act_order: GPTQ's desc_act. activations: how inputs are quantised ("float4", "float8", "int8"),
        empty where they are not.
    also: other rows that the promise may mean as well.
    blanket: the config names no module, so that one which is left dense does not contradict it.
    file, where: which file and entry say so ("quantization_config.config_groups.group_0").
    """

    format: str
    file: Path
    where: str
    bits: float | None = None
    group: tuple[int, int] | None = None
    symmetric: bool | None = None
    scale_dtype: str | None = None
    act_order: bool | None = None
    activations: str = ""
    also: tuple[str, ...] = ()
    blanket: bool = False
