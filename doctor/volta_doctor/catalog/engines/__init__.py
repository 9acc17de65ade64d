"""The engines that a stack can have: one YAML file each; README.md beside them has the keys."""

from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from math import inf, log
from typing import Literal

import msgspec

from volta_doctor.catalog import load
from volta_doctor.facts.serve.engines import ENGINES, Flags
from volta_doctor.facts.serve.engines import Engine as CommandLine
from volta_runtime.checkpoint.formats import BY_NAME


class Support(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine does with a weight format on sm_70; the first row that fits counts.

    `formats` are names of volta_runtime.checkpoint.formats rows, or globs of them. The other fields
    narrow it down, None or empty for any: `methods` are quant_methods of the config, `groups` and
    `rows` the weights along K and along N that share a scale, 0 for all of them. `versions` is a
    PEP 440 specifier of the releases that it holds for. `env` is what it must be asked with. `says`
    is the sentence that the engine ends with where it does not run ({group} stands for the group),
    `note` what to know besides.
    """

    formats: list[str]
    methods: list[str] = []
    runs: bool
    groups: list[int] = []
    rows: list[int] = []
    symmetric: bool | None = None
    act_order: bool | None = None
    experts: bool | None = None
    versions: str = ""
    env: dict[str, str] = {}
    says: str = ""
    note: str = ""
    source: str

    def sentence(self, group: tuple[int, int] | None = None) -> str:
        """Return what the engine ends with, for a weight with this group (rows, columns)."""
        return self.says.replace("{group}", str(group[1] if group else None))


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the roofline an engine was seen to reach: a range, never one number.

    `phase` decode is a share of the memory bandwidth, as weights stream by, past one of it as the
    KV cache does (`formats` are its types then), and prefill one of the FP16 tensor peak. `experts`
    narrows it to mixtures or to dense models. `tokens` is how long the prompts were that a row of
    prefill was measured with. `measured` says what was measured: figures, model, cards, flags.
    """

    phase: Literal["decode", "past", "prefill"]
    formats: list[str]
    experts: bool | None = None
    tokens: int = 1
    low: float
    high: float
    measured: str
    source: str


class Latency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What each layer of a step costs beside reading and computing, in microseconds.

    Starting kernels, small ones that are too short to fill a GPU, and Python between them. `each_`
    is what each further sequence adds, where attention goes through them one by one; `expert_` what
    each matrix of an expert adds to a step of a prompt, where those are multiplied one by one.
    """

    graphs: bool
    experts: bool
    low_us: float
    high_us: float
    each_low_us: float = 0
    each_high_us: float = 0
    expert_low_us: float = 0
    expert_high_us: float = 0
    measured: str
    source: str


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine takes GPU memory, in bytes on each GPU.

    `utilization` is its default share of a GPU, None where it works one out. `graphs` says whether
    it captures CUDA graphs, which cost `graph_bytes`; `context_bytes` is CUDA's context with its
    libraries. `sequences` full contexts are reserved from the start where --max-num-seqs is not
    given; None for an engine that pages its cache. `block` is a page of the KV cache, in tokens;
    `states` are the recurrent states that are kept of each sequence.
    `step_tokens` is how many tokens of prompts it computes at once, which activations grow with.
    `logits` are made of all tokens of a step, or of one of each sequence; choosing the next token
    takes `logit_bytes` of each (41: vLLM's profile run, vllm #10511).
    """

    utilization: float | None
    graphs: bool
    graph_bytes: int
    context_bytes: int
    sequences: int | None = None
    block: int = 1
    states: int = 1
    step_tokens: int
    logits: Literal["sequences", "step"] = "sequences"
    logit_bytes: int = 41
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


class Architectures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `names` of config.json's architectures that an engine serves.

    `says` is the sentence that it ends with for another one, where {asked} stands for the list of a
    model's, {first} for the first of it, and {names} for this list. `note` is what to know besides.
    """

    names: list[str]
    says: str
    note: str = ""
    source: str

    def sentence(self, asked: list[str]) -> str:
        """Return what the engine ends with for a model of other architectures."""
        words = {"{asked}": str(asked), "{names}": str(self.names), "{first}": "".join(asked[:1])}
        said = self.says
        for word, meant in words.items():
            said = said.replace(word, meant)
        return said


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine.

    `version` is the newest that the rows were held against. `program` names the row of
    facts.serve.engines that knows how it is started and what it calls its flags; `flags` are
    words by field of Flags for those that stand there not, or that mean something else:
    `--quant-policy {}`. `always` are the words that Volta asks of it, `env` the variables.
    `context` says whether its flag for the context counts one sequence's tokens or those of all.
    `architectures` is None where it serves most of what there is. `shards` says how it uses several
    GPUs: tensor (each layer is split), layer (each GPU has some) or none (it takes one).
    `dequantises` says whether it makes FP16 copies of quantised weights for steps of many tokens.
    `scaling` is None where it is not known.
    `python` is the minor version that it is made for, `glibc` the least release that its versions
    `glibc_for` (a PEP 440 specifier) run with; empty where any does. `note` is what to know of all
    its releases.
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
    architectures: Architectures | None = None
    formats: list[Support]
    kv_cache: list[KvCache]
    memory: Memory
    scaling: Scaling | None = None
    speed: list[Efficiency]
    latency: list[Latency]
    dequantises: bool = False
    python: str = ""
    glibc: str = ""
    glibc_for: str = ""
    note: str = ""
    source: str

    @property
    def command_line(self) -> CommandLine:
        """The row that recognises its command line."""
        return next(row for row in ENGINES if row.name == self.program)

    def supports(
        self,
        name: str,
        *,
        method: str = "",
        group: tuple[int, int] | None = None,
        symmetric: bool | None = None,
        act_order: bool | None = None,
        experts: bool = False,
        version: str = "",
    ) -> Support | None:
        """Return the row for a weight format; None where no row says anything of it.

        `method` is the config's quant_method, which a row of certain methods asks for. `group` is
        that of the weights that share a scale (rows, columns). A row that asks for what else is not
        told (None) fits. Without a version the newest one counts that the rows were held against.
        """
        from packaging.specifiers import SpecifierSet

        for row in self.formats:
            asked = (
                (row.symmetric, symmetric),
                (row.act_order, act_order),
                (row.experts, experts),
            )
            if (
                any(fnmatchcase(name, glob) for glob in row.formats)
                and (not row.methods or method in row.methods)
                and (not group or not row.groups or group[1] in row.groups)
                and (not group or not row.rows or group[0] in row.rows)
                and all(want is None or have is None or want == have for want, have in asked)
                and SpecifierSet(row.versions, prereleases=True).contains(version or self.version)
            ):
                return row
        return None

    def measured(
        self, phase: str, name: str, experts: bool, tokens: int
    ) -> tuple[Efficiency, bool]:
        """Return the row that is nearest to a format, and whether it was measured with it.

        Of others the one whose weights take the most similar bits; of several lengths of prompts
        the nearest.
        """
        rows = [row for row in self.speed if row.phase == phase]

        def distance(row: Efficiency) -> tuple[bool, float, bool, float]:
            own = any(fnmatchcase(name, glob) for glob in row.formats)
            far = 0.0 if own else _difference(name, row.formats)
            return not own, far, row.experts not in (None, experts), abs(log(tokens / row.tokens))

        nearest = min(rows, key=distance)
        strange, _, other_kind, _ = distance(nearest)
        return nearest, not strange and not other_kind

    def latency_of(self, graphs: bool, experts: bool) -> Latency:
        """Return the row of latencies that is nearest; with or without graphs matters most."""
        return min(self.latency, key=lambda row: (row.graphs != graphs, row.experts != experts))

    def cache(self, name: str) -> KvCache | None:
        """Return a type of KV cache by its name, auto for the engine's own choice."""
        if name == "auto":
            return next(row for row in self.kv_cache if row.runs)
        return next((row for row in self.kv_cache if row.name == name), None)

    def takes(self, flag: str) -> bool:
        """Say whether it has a flag for a field of Flags."""
        return flag in self.flags or flag in self.command_line.flags

    def words(self, flags: Flags) -> list[str]:
        """Return the command that starts it with these flags; those that it lacks are left out.

        A flag outweighs what Volta always asks for.
        """
        line = self.command_line
        words = line.programs[0].split()
        words = ["python", *words] if words[0] == "-m" else words
        if line.model_first and flags.model:
            words.append(flags.model)
        for field in Flags.__struct_fields__:
            value = getattr(flags, field)
            if value is None or value is False or (field == "model" and line.model_first):
                continue
            if field == "max_model_len" and self.context == "all":
                value *= flags.max_num_seqs or 1
            words += self._option(field, value)
        given = False
        for word in self.always:
            given = word in words if word.startswith("--") else given
            words += [] if given else [word]
        return words

    def _option(self, field: str, value: object) -> list[str]:
        if field in self.flags:
            return self.flags[field].format(value).split()
        options = self.command_line.flags.get(field)
        if not options:
            return []
        return [f"--{options[0]}"] if value is True else [f"--{options[0]}", str(value)]


def _difference(name: str, globs: list[str]) -> float:
    """The bits of a weight that lie between a format and the nearest of some others."""
    bits = BY_NAME[name].bits if name in BY_NAME else 0.0
    others = (r.bits for n, r in BY_NAME.items() if any(fnmatchcase(n, glob) for glob in globs))
    return min((abs(bits - other) for other in others), default=inf)


@cache
def engines() -> dict[str, Engine]:
    """Return all engines by name, the order of names. Raises ValueError naming the faulty file."""
    names = sorted(p.name for p in files(__name__).iterdir() if p.name.endswith(".yaml"))
    return {row.name: row for name in names if (row := load(f"engines/{name}", Engine))}
