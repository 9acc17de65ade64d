"""The engines that a stack can have: one YAML file each; README.md beside them has the keys."""

from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from volta_doctor.catalog import load
from volta_doctor.facts.serve.engines import ENGINES, Flags
from volta_doctor.facts.serve.engines import Engine as CommandLine


class Support(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine does with a weight format on sm_70; the first row that fits counts.

    `formats` are names of volta_runtime.checkpoint.formats rows, or globs of them. The other fields
    narrow it down, None or empty for any: `groups` are the weights along K that share a scale.
    `versions` is a PEP 440 specifier of the releases that it holds for. `says` is the sentence that
    the engine ends with where it does not run, `note` what to know where it does.
    """

    formats: list[str]
    runs: bool
    groups: list[int] = []
    symmetric: bool | None = None
    act_order: bool | None = None
    experts: bool | None = None
    versions: str = ""
    says: str = ""
    note: str = ""
    source: str


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the roofline an engine was seen to reach: a range, never one number.

    `phase` decode is a share of the memory bandwidth (batch 1), prefill one of the FP16 tensor
    peak. `measured` says what was measured: figures, model, cards, flags.
    """

    phase: Literal["decode", "prefill"]
    formats: list[str]
    low: float
    high: float
    measured: str
    source: str


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine takes GPU memory, in bytes on each GPU.

    `utilization` is its default share of a GPU, None where it works one out. `graphs` says whether
    it captures CUDA graphs, which cost `graph_bytes`; `context_bytes` is CUDA's context with its
    libraries. `sequences` full contexts are reserved from the start where --max-num-seqs is not
    given; None for an engine that pages its cache. `block` is a page of the KV cache, in tokens.
    `step_tokens` is how many tokens of prompts it computes at once, which activations grow with.
    """

    utilization: float | None
    graphs: bool
    graph_bytes: int
    context_bytes: int
    sequences: int | None = None
    block: int = 1
    step_tokens: int
    source: str


class KvCache(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of KV cache on sm_70: its name for the engine's flag, and bytes a value."""

    name: str
    runs: bool
    bytes: float
    says: str = ""
    note: str = ""
    source: str


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine makes of 4-bit floats' scales before it multiplies.

    `fused` says which global scale the parts of a fused layer get where theirs differ: each its own
    (apart), or all the largest (maximum); empty where no format with globals runs. `folded` is the
    type that the product of block and global scale is rounded to.
    """

    fused: Literal["apart", "maximum", ""]
    folded: Literal["float16", "float32"]
    source: str


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine.

    `version` is the newest that the rows were held against. `program` names the row of
    facts.serve.engines that knows how it is started and what it calls its flags; `flags` are
    words by field of Flags for those that stand there not, or that mean something else:
    `--quant-policy {}`. `always` are the words that Volta asks of it, `env` the variables.
    `context` says whether its flag for the context counts one sequence's tokens or those of all.
    `architectures` and `model_types` list what it knows, empty for most of what there is. `shards`
    says how it uses several GPUs: tensor (each layer is split) or layer (each GPU has some).
    `scaling` is None where it is not known.
    `python` is the minor version that it is made for, `glibc` the least release that its versions
    `glibc_for` (a PEP 440 specifier) run with; empty where any does.
    """

    name: str
    title: str
    version: str
    program: str
    flags: dict[str, str] = {}
    always: list[str] = []
    env: dict[str, str] = {}
    context: Literal["each", "all"] = "each"
    shards: Literal["tensor", "layer", "none"]
    expert_parallel: bool = False
    architectures: list[str] = []
    formats: list[Support]
    kv_cache: list[KvCache]
    memory: Memory
    scaling: Scaling | None = None
    speed: list[Efficiency]
    python: str = ""
    glibc: str = ""
    glibc_for: str = ""
    source: str

    @property
    def command_line(self) -> CommandLine:
        """The row that recognises its command line."""
        return next(row for row in ENGINES if row.name == self.program)

    def takes(self, flag: str) -> bool:
        """Say whether it has a flag for a field of Flags."""
        return flag in self.flags or flag in self.command_line.flags

    def words(self, flags: Flags) -> list[str]:
        """Return the command that starts it with these flags; those that it lacks are left out."""
        line = self.command_line
        words = line.programs[0].split()
        if line.model_first and flags.model:
            words.append(flags.model)
        for field in Flags.__struct_fields__:
            value = getattr(flags, field)
            if value is None or value is False or (field == "model" and line.model_first):
                continue
            if field == "max_model_len" and self.context == "all":
                value *= flags.max_num_seqs or 1
            words += self._option(field, value)
        return [*words, *self.always]

    def _option(self, field: str, value: object) -> list[str]:
        if field in self.flags:
            return self.flags[field].format(value).split()
        options = self.command_line.flags.get(field)
        if not options:
            return []
        return [f"--{options[0]}"] if value is True else [f"--{options[0]}", str(value)]


@cache
def engines() -> dict[str, Engine]:
    """Return all engines by name, the order of names. Raises ValueError naming the faulty file."""
    names = sorted(p.name for p in files(__name__).iterdir() if p.name.endswith(".yaml"))
    return {row.name: row for name in names if (row := load(f"engines/{name}", Engine))}
