"""Random matrices of every weight name as pack() takes them, and as exact float64 numbers.

The reference shares no code with the kernels: it is each name's formula over tables of values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from volta_runtime.ops import PackedWeight, packed

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
E2M1 = torch.cat((E2M1, -E2M1))


@dataclass(frozen=True)
class Sample:
    """A matrix [n, k] in the form of its name."""

    format: str
    codes: Tensor
    scales: tuple[Tensor, ...]
    row_scale: Tensor

    def exact(self) -> Tensor:
        """W in float64."""
        weights = REFERENCES[self.format](self.codes, *self.scales)
        return weights * self.row_scale.double()[:, None]


def pack(sample: Sample, device: torch.device, **options) -> PackedWeight:
    """The sample packed on a device; options are packed.pack's."""
    return packed.pack(
        sample.format,
        sample.codes.to(device),
        *(array.to(device) for array in sample.scales),
        row_scale=sample.row_scale.to(device),
        **options,
    )


def _each(scale: Tensor, columns: int, k: int) -> Tensor:
    return scale.double().repeat_interleave(columns, 1)[:, :k]


def _e4m3(codes: Tensor) -> Tensor:
    return codes.view(torch.float8_e4m3fn).double()


def _e2m1(columns):
    return lambda q, scale: E2M1[q.long()] * _each(scale, columns, q.shape[1])


def _zero(columns):
    def weights(q, scale, zero):
        k = q.shape[1]
        return (q.double() - _each(zero, columns, k)) * _each(scale, columns, k)

    return weights


def _k_quant(q, d, dmin, scale, least):
    k = q.shape[1]
    return _each(d, 256, k) * _each(scale, 32, k) * q.double() - _each(dmin, 256, k) * _each(
        least, 32, k
    )


REFERENCES = {
    "nvfp4": lambda q, s: E2M1[q.long()] * _each(_e4m3(s), 16, q.shape[1]),
    "mxfp4": lambda q, s: E2M1[q.long()] * _each(2.0 ** (s.double() - 127), 32, q.shape[1]),
    "fp4_f32": _e2m1(32),
    "fp4_bf16": _e2m1(32),
    "int4": lambda q, s: (q.double() - 8) * _each(s, 32, q.shape[1]),
    "int4_g32": _zero(32),
    "int4_g64": _zero(64),
    "int4_g128": _zero(128),
    "q4_1": lambda q, s, m: q.double() * _each(s, 32, q.shape[1]) + _each(m, 32, q.shape[1]),
    "q4_k": _k_quant,
    "q5_k": _k_quant,
    "q6_k": lambda q, d, s: (
        (q.double() - 32) * _each(s, 16, q.shape[1]) * _each(d, 256, q.shape[1])
    ),
    "q8_0": lambda q, s: q.double() * _each(s, 32, q.shape[1]),
    "fp8": lambda q: _e4m3(q),
    "fp8_block": lambda q, s: _e4m3(q) * _each(s, 128, q.shape[1]),
}

# What K is a multiple of, and how many codes there are.
MULTIPLES = {
    **dict.fromkeys(("nvfp4", "fp8", "fp8_block"), 16),
    **dict.fromkeys(("q4_k", "q5_k", "q6_k"), 256),
    "int4_g64": 64,
    "int4_g128": 128,
}
CODES = {"q5_k": 32, "q6_k": 64}
FORMATS = tuple(REFERENCES)


def multiple(name):
    return MULTIPLES.get(name, 32)


def random_codes(name, n, k, generator):
    """Any code that the name has."""
    if name == "q8_0":
        return torch.randint(-128, 128, (n, k), generator=generator).to(torch.int8)
    if name.startswith("fp8"):
        return finite_e4m3((n, k), generator)
    return torch.randint(0, CODES.get(name, 16), (n, k), generator=generator).to(torch.uint8)


def finite_e4m3(shape, generator):
    """Any byte of E4M3 but the two NaN."""
    byte = torch.randint(0, 254, shape, generator=generator)
    return torch.where(byte >= 127, byte + 1, byte).to(torch.uint8)


def random_scales(name, n, k, generator):
    """Scales as models have them: of a few powers of two, some of them zero."""

    def floats(columns, dtype=torch.float16):
        shape = n, -(-k // columns)
        value = torch.rand(shape, generator=generator) * 0.02 + 1e-4
        value *= 2.0 ** torch.randint(-3, 3, shape, generator=generator)
        value[torch.rand(shape, generator=generator) < 0.05] = 0
        return value.to(dtype)

    def bytes_(columns, low, high, dtype=torch.uint8):
        return torch.randint(low, high, (n, -(-k // columns)), generator=generator).to(dtype)

    makers = {
        "nvfp4": lambda: (finite_e4m3((n, k // 16), generator),),
        "mxfp4": lambda: (bytes_(32, 110, 126),),
        "fp4_f32": lambda: (floats(32, torch.float32),),
        "fp4_bf16": lambda: (floats(32, torch.bfloat16),),
        "int4_g32": lambda: (floats(32), bytes_(32, 0, 17)),
        "int4_g64": lambda: (floats(64), bytes_(64, 0, 17)),
        "int4_g128": lambda: (floats(128), bytes_(128, 0, 17)),
        "q4_1": lambda: (floats(32), -floats(32)),
        "q4_k": lambda: (floats(256), floats(256), bytes_(32, 0, 64), bytes_(32, 0, 64)),
        "q6_k": lambda: (floats(256), bytes_(16, -128, 128, torch.int8)),
        "int4": lambda: (floats(32),),
        "fp8": lambda: (),
        "fp8_block": lambda: (floats(128, torch.float32),),
    }
    makers |= {"q5_k": makers["q4_k"], "q8_0": makers["int4"]}
    return makers[name]()


def random_sample(name, n, k, generator):
    """A matrix like those of models, with a scale of its own for each row.

    MXFP4's are at least 1, below 2: the power of two is not told from that of the blocks.
    """
    return Sample(
        name,
        random_codes(name, n, k, generator),
        random_scales(name, n, k, generator),
        torch.rand(n, generator=generator) + (1 if name == "mxfp4" else 0.5),
    )
