"""What a memory plan says: bytes by part, on each GPU."""

from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class Parts:
    """What one GPU holds, in bytes.

    weights: those of the layers, as the engine packs them. embeddings: the embedding and the head.
    kv_cache: keys and values of the asked context and concurrency. state: recurrent state of as
    many sequences. activations: the largest buffers of a forward pass. graphs: captured CUDA
    graphs. context: CUDA itself with its libraries. neighbours: what other processes hold.
    """

    weights: int
    embeddings: int
    kv_cache: int
    state: int
    activations: int
    graphs: int
    context: int
    neighbours: int

    @property
    def total(self) -> int:
        """Their sum."""
        return sum(astuple(self))


@dataclass(frozen=True)
class MemoryPlan:
    """Whether a model fits, and what would.

    gpus: by GPU, `budget` what an engine may take of each beside its neighbours' share.
    kv_bytes_per_token: of one token on the fullest GPU, as long as no window is full.
    max_context: the longest context at the asked concurrency, 0 where not one token fits.
    max_concurrency: the most sequences of the asked context, 0 where not one fits.
    notes: what was estimated, and why.
    """

    gpus: tuple[Parts, ...]
    budget: tuple[int, ...]
    fits: bool
    kv_bytes_per_token: float
    max_context: int
    max_concurrency: int
    notes: tuple[str, ...] = ()
