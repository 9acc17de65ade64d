"""The parts decoder models are made of.

Activations are float32 on the CPU and float16 on CUDA; residual streams and norms are float32
on both, because float16 residuals overflow in several model families.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone gives it
from torch import Tensor

from volta_runtime import ops
from volta_runtime.errors import ModelError


def activation_dtype(device: torch.device) -> torch.dtype:
    """float32 on the CPU, float16 on CUDA (sm_70 has no bfloat16)."""
    return torch.float32 if device.type == "cpu" else torch.float16


_ALL_THREADS = torch.get_num_threads()

# Elements of keys times queries; one query over 1024 tokens of 3 heads is 2e5, and 110 us.
_WORTH_SHARING = 1 << 18


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Let torch and the kernels use so many CPU threads; also a decorator.

    Models run on one, and only matrices and long attention on all: to wake a second thread costs
    20 us on an idle machine and 1.5 ms on a busy one, more than any other operation takes.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def require_memory(device: torch.device, need: int, what: str, remedy: str) -> None:
    """Raises ModelError when `need` bytes for `what` exceed the device's memory.

    That is the free memory of a GPU, but all the memory of a host: its caches give way, and pages
    that are never touched cost nothing.
    """
    if device.type == "cuda":
        room, where = torch.cuda.mem_get_info(device)[0], "of GPU memory are free"
    else:
        room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        where = "of memory are in this machine"
    if need > room:
        raise ModelError(
            f"{what} would take {need / 2**30:.1f} GiB, but {room / 2**30:.1f} GiB {where}; "
            f"{remedy}"
        )


@dataclass(frozen=True)
class NVFP4Linear:
    """y = x Wᵀ on the CPU, with W kept as packed 4-bit codes."""

    weight: ops.NVFP4Weight

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N]."""
        with cpu_threads(_ALL_THREADS):
            return ops.nvfp4_linear(x, self.weight)


@dataclass(frozen=True)
class PackedLinear:
    """y = x Wᵀ on CUDA, with W kept in tiles; of [gate; up] in gate_up order silu(gate) * up."""

    weight: ops.PackedWeight

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N], or to [..., N / 2] where gated."""
        return ops.linear(x, self.weight, gated=self.weight.row_order == "gate_up")


@dataclass(frozen=True)
class HalfLinear:
    """y = x Wᵀ with W float16 [N, K]; on the CPU the arithmetic is float32."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N]."""
        if x.device.type == "cpu":
            with cpu_threads(_ALL_THREADS):
                return ops.half_linear(x, self.weight)
        return F.linear(x, self.weight)


@dataclass(frozen=True)
class GatedLinear:
    """silu(gate) * up of what a layer of [gate; up] gives."""

    gate_up: NVFP4Linear | HalfLinear

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [..., K] to [..., N / 2]."""
        gate, up = self.gate_up(x).chunk(2, -1)
        return F.silu(gate).mul_(up)


Linear = NVFP4Linear | PackedLinear | HalfLinear
Gated = PackedLinear | GatedLinear


@dataclass(frozen=True)
class RMSNorm:
    """x / rms(x) · weight over the last dimension, in float32, returned as `dtype`."""

    weight: Tensor
    eps: float
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise float32 x [..., K]."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps).to(self.dtype)


class Rope:
    """Rotary position embedding in the "neox" order: element i turns with i + head_dim / 2."""

    def __init__(self, head_dim: int, theta: float, max_len: int, device: torch.device) -> None:
        require_memory(
            torch.device("cpu"),
            3 * 8 * max_len * head_dim // 2,
            f"the rotary table for {max_len} tokens",
            "lower --max-model-len",
        )
        # float64 angles: at position 100,000 a float32 product is off by 4e-3 rad.
        inverse = theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = torch.outer(torch.arange(max_len, dtype=torch.float64), inverse)
        dtype = activation_dtype(device)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        self.cos = torch.cat((cos, cos), -1).unsqueeze(1).to(device)
        # The sign of the rotation is folded in here, so that apply() is three calls.
        self.sin = torch.cat((-sin, sin), -1).unsqueeze(1).to(device)

    def at(self, spans: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each [T, 1, head_dim], for the positions of the [start, end) spans."""
        if len(spans) == 1:
            ((start, end),) = spans
            return self.cos[start:end], self.sin[start:end]
        return (
            torch.cat([self.cos[start:end] for start, end in spans]),
            torch.cat([self.sin[start:end] for start, end in spans]),
        )

    @staticmethod
    def apply(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate x [T, heads, head_dim]."""
        return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


class SequenceCache:
    """Keys and values of one sequence: [layers, 2, kv_heads, max_len, head_dim]."""

    def __init__(self, data: Tensor) -> None:
        self.length = 0
        self._layers = [(layer[0], layer[1]) for layer in data]

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [n, kv_heads, head_dim] behind the cached ones of this layer.

        Returns all of them, each [kv_heads, length + n, head_dim]. `length` moves on only when
        the model has gone through every layer.
        """
        end = self.length + keys.shape[0]
        all_keys, all_values = self._layers[layer]
        all_keys[:, self.length : end].copy_(keys.transpose(0, 1))
        all_values[:, self.length : end].copy_(values.transpose(0, 1))
        return all_keys[:, :end], all_values[:, :end]


class KVCache:
    """A fixed number of sequence slots, reserved once, so that serving never runs out of memory.

    On the CPU untouched pages cost nothing; the lowest free slot is handed out first, which
    keeps a lightly used server small.
    """

    def __init__(
        self,
        *,
        slots: int,
        layers: int,
        kv_heads: int,
        max_len: int,
        head_dim: int,
        device: torch.device,
    ) -> None:
        shape = (slots, layers, 2, kv_heads, max_len, head_dim)
        dtype = activation_dtype(device)
        require_memory(
            device,
            torch.Size(shape).numel() * dtype.itemsize,
            f"the KV cache for {slots} sequences of {max_len} tokens",
            "lower --max-model-len or --max-num-seqs",
        )
        self._data = torch.empty(shape, dtype=dtype, device=device)
        self._free = set(range(slots))
        self._slot_of: dict[SequenceCache, int] = {}

    @property
    def free_slots(self) -> int:
        """How many sequences can still be admitted."""
        return len(self._free)

    def acquire(self) -> SequenceCache:
        """An empty slot; to be called only while `free_slots` > 0."""
        slot = min(self._free)
        self._free.remove(slot)
        cache = SequenceCache(self._data[slot])
        self._slot_of[cache] = slot
        return cache

    def release(self, cache: SequenceCache) -> None:
        """Give the slot back at once."""
        self._free.add(self._slot_of.pop(cache))


@dataclass(frozen=True)
class Segment:
    """The next `length` tokens of one sequence, to be run behind what its cache holds."""

    cache: SequenceCache
    length: int

    @property
    def start(self) -> int:
        """Position of the first token."""
        return self.cache.length


class Attention:
    """Causal attention of a ragged batch, prepared once per forward pass for all layers.

    Query heads that share a key head are stacked along the query rows, so that grouped
    attention needs no copies of keys or values and runs on every SDPA backend.
    """

    def __init__(
        self, segments: list[Segment], groups: int, dtype: torch.dtype, device: torch.device
    ):
        self._segments = segments
        self._groups = groups
        self._masks = [self._mask(s, dtype, device) for s in segments]
        self.last_rows = [end - 1 for end in accumulate(s.length for s in segments)]

    def _mask(self, segment: Segment, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        if segment.length == 1:
            return None
        shape = (segment.length, segment.start + segment.length)
        mask = torch.full(shape, float("-inf"), dtype=dtype, device=device)
        return mask.triu_(segment.start + 1).repeat(self._groups, 1)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """From q [T, heads, head_dim], k and v [T, kv_heads, head_dim] to [T, heads · head_dim]."""
        if len(self._segments) == 1:
            return self._attend(layer, 0, q, k, v)
        lengths = [s.length for s in self._segments]
        parts = zip(*(torch.split(x, lengths) for x in (q, k, v)), strict=True)
        return torch.cat([self._attend(layer, i, *part) for i, part in enumerate(parts)])

    def _attend(self, layer: int, index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = self._segments[index].cache.append(layer, k, v)
        n, heads, head_dim = q.shape
        kv_heads = heads // self._groups
        rows = q.view(n, kv_heads, self._groups, head_dim).permute(1, 2, 0, 3)
        rows = rows.reshape(1, kv_heads, self._groups * n, head_dim)
        with cpu_threads(1 if n * keys.numel() < _WORTH_SHARING else _ALL_THREADS):
            out = F.scaled_dot_product_attention(
                rows, keys.unsqueeze(0), values.unsqueeze(0), self._masks[index]
            )
        out = out.view(kv_heads, self._groups, n, head_dim).permute(2, 0, 1, 3)
        return out.reshape(n, heads * head_dim)
