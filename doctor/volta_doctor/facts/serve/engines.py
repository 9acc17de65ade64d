"""The engines that serve language models: how to recognise one, and what it calls its flags.

To add an engine, add a row.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from volta_doctor.facts.serve.command_line import options, program


class Flags(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Serving flags in vLLM's names; None where the server was not told, so its default holds.

    `enforce_eager` stands for every way to go without CUDA graphs.
    """

    model: str | None = None
    revision: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    enable_expert_parallel: bool = False
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    swap_space_gib: float | None = None
    dtype: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    attention_backend: str | None = None
    enforce_eager: bool = False
    disable_custom_all_reduce: bool = False
    device: str | None = None
    port: int | None = None


class Engine(NamedTuple):
    """One engine.

    `programs` are the beginnings of its command lines as `command_line.program` gives them.
    `flags` lists by field of `Flags` its options without dashes; `option=value` means true where
    the option has that value. `env` lists variables by field; options outweigh them. `config` is
    the option that names a YAML file of options. With `model_first` the model is the first word
    that is no option. `python` says whether it is a Python program.
    """

    name: str
    programs: tuple[str, ...]
    flags: Mapping[str, tuple[str, ...]]
    env: Mapping[str, str] = MappingProxyType({})
    config: str = ""
    model_first: bool = False
    python: bool = True


_VLLM_FLAGS = {
    "model": ("model",),
    "revision": ("revision",),
    "tensor_parallel_size": ("tensor-parallel-size", "tp"),
    "pipeline_parallel_size": ("pipeline-parallel-size", "pp"),
    "enable_expert_parallel": ("enable-expert-parallel", "ep"),
    "gpu_memory_utilization": ("gpu-memory-utilization",),
    "max_model_len": ("max-model-len",),
    "max_num_seqs": ("max-num-seqs",),
    "swap_space_gib": ("swap-space",),
    "dtype": ("dtype",),
    "quantization": ("quantization", "q"),
    "kv_cache_dtype": ("kv-cache-dtype",),
    "attention_backend": ("attention-backend", "attention-config.backend", "ac.backend"),
    "enforce_eager": (
        "enforce-eager",
        "compilation-config.cudagraph-mode=NONE",
        "cc.cudagraph-mode=NONE",
        "O.cudagraph-mode=NONE",
        "optimization-level=0",
        "O0",
    ),
    "disable_custom_all_reduce": ("disable-custom-all-reduce",),
    "device": ("device",),
    "port": ("port",),
}
_EMBEDDED_FLAGS = {
    field: (field.replace("_", "-"),)
    for field in ("model", "port", "max_model_len", "max_num_seqs", "dtype", "device")
} | {"quantization": ("quantization", "q")}

ENGINES = (
    Engine(
        name="embedded",
        programs=("volta-serve serve", "-m volta_runtime.cli serve"),
        flags=_EMBEDDED_FLAGS,
        env={field: f"VOLTA_SERVE_{field.upper()}" for field in _EMBEDDED_FLAGS},
    ),
    Engine(
        name="vllm",
        programs=(
            "vllm serve",
            "-m vllm.entrypoints.cli.main serve",
            "-m vllm.entrypoints.openai.api_server",
            "-m vllm.entrypoints.api_server",
        ),
        flags=_VLLM_FLAGS,
        env={"attention_backend": "VLLM_ATTENTION_BACKEND"},
        config="config",
        model_first=True,
    ),
    # cache-max-entry-count is a share of the memory that the weights leave free, so it is not
    # gpu-memory-utilization, a share of all.
    Engine(
        name="lmdeploy",
        programs=("lmdeploy serve api_server", "-m lmdeploy serve api_server"),
        flags={
            "revision": ("revision",),
            "tensor_parallel_size": ("tp",),
            "max_model_len": ("session-len",),
            "max_num_seqs": ("max-batch-size",),
            "dtype": ("dtype",),
            "quantization": ("model-format",),
            "enforce_eager": ("eager-mode",),
            "device": ("device",),
            "port": ("server-port",),
        },
        model_first=True,
    ),
    Engine(
        name="sglang",
        programs=("-m sglang.launch_server", "sglang serve"),
        flags={
            "model": ("model-path", "model"),
            "revision": ("revision",),
            "tensor_parallel_size": ("tensor-parallel-size", "tp-size", "tp"),
            "pipeline_parallel_size": ("pipeline-parallel-size", "pp-size", "pp"),
            "gpu_memory_utilization": ("mem-fraction-static",),
            "max_model_len": ("context-length",),
            "max_num_seqs": ("max-running-requests",),
            "dtype": ("dtype",),
            "quantization": ("quantization",),
            "kv_cache_dtype": ("kv-cache-dtype",),
            "attention_backend": ("attention-backend",),
            "enforce_eager": ("disable-cuda-graph",),
            "disable_custom_all_reduce": ("disable-custom-all-reduce",),
            "device": ("device",),
            "port": ("port",),
        },
        config="config",
    ),
    Engine(
        name="llamacpp",
        programs=("llama-server",),
        python=False,
        flags={
            "model": ("model", "m", "hf-repo", "hf", "hfr"),
            "max_model_len": ("ctx-size", "c"),
            "max_num_seqs": ("parallel", "np"),
            "kv_cache_dtype": ("cache-type-k", "ctk"),
            "device": ("device", "dev"),
            "port": ("port",),
        },
        env={
            "model": "LLAMA_ARG_MODEL",
            "max_model_len": "LLAMA_ARG_CTX_SIZE",
            "max_num_seqs": "LLAMA_ARG_N_PARALLEL",
            "kv_cache_dtype": "LLAMA_ARG_CACHE_TYPE_K",
            "device": "LLAMA_ARG_DEVICE",
            "port": "LLAMA_ARG_PORT",
        },
    ),
    Engine(
        name="ollama",
        programs=("ollama serve",),
        python=False,
        flags={},
        env={
            "max_model_len": "OLLAMA_CONTEXT_LENGTH",
            "max_num_seqs": "OLLAMA_NUM_PARALLEL",
            "kv_cache_dtype": "OLLAMA_KV_CACHE_TYPE",
        },
    ),
    Engine(
        name="tgi",
        programs=("text-generation-launcher",),
        python=False,
        flags={
            "model": ("model-id",),
            "revision": ("revision",),
            "tensor_parallel_size": ("num-shard",),
            "gpu_memory_utilization": ("cuda-memory-fraction",),
            "max_model_len": ("max-total-tokens",),
            "max_num_seqs": ("max-concurrent-requests",),
            "dtype": ("dtype",),
            "quantization": ("quantize",),
            "kv_cache_dtype": ("kv-cache-dtype",),
            "enforce_eager": ("cuda-graphs=0",),
            "port": ("port", "p"),
        },
        env={
            "model": "MODEL_ID",
            "revision": "REVISION",
            "tensor_parallel_size": "NUM_SHARD",
            "gpu_memory_utilization": "CUDA_MEMORY_FRACTION",
            "max_model_len": "MAX_TOTAL_TOKENS",
            "max_num_seqs": "MAX_CONCURRENT_REQUESTS",
            "dtype": "DTYPE",
            "quantization": "QUANTIZE",
            "kv_cache_dtype": "KV_CACHE_DTYPE",
            "attention_backend": "ATTENTION",
            "port": "PORT",
        },
    ),
)

_BOOLEANS = ("true", "false", "1", "0")
# vLLM takes `--max-model-len 32k` (thousands) and `32K` (1024s); so may the others.
_SCALES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def recognise(argv: list[str]) -> tuple[Engine, list[str]] | None:
    """Return the engine that a command line starts, and the words after its name."""
    words = program(argv)
    for engine in ENGINES:
        for beginning in engine.programs:
            head = beginning.split()
            if words[: len(head)] == head:
                return engine, words[len(head) :]
    return None


def read_flags(
    engine: Engine, words: list[str], env: dict[str, str], config: dict[str, str]
) -> tuple[Flags, str]:
    """Return an engine's flags, and in words which of their values make no sense.

    `words` follow the program's name, `config` are the options of its configuration file.
    """
    positional, given = options(words)
    found: dict[str, Any] = {}
    wrong: list[str] = []
    types = {field.name: field.type for field in msgspec.structs.fields(Flags)}
    for field, kind in types.items():
        text, source = _lookup(engine, field, (given, config), env)
        if text is None:
            continue
        try:
            if "$" in text:  # of a script: only the shell knows
                raise ValueError
            found[field] = _convert(text, kind)
        except ValueError:
            wrong.append(f"{source} is {text!r}")
        if kind is bool and text.lower() not in _BOOLEANS:  # a word that merely follows the flag
            positional.append(text)
    if engine.model_first and positional and "model" not in found:
        found["model"] = positional[0]
    return Flags(**found), ", ".join(wrong)


def _lookup(
    engine: Engine, field: str, places: tuple[dict[str, str], ...], env: dict[str, str]
) -> tuple[str | None, str]:
    for given in places:
        for option in engine.flags.get(field, ()):
            name, equals, wanted = option.partition("=")
            if name in given and not equals:
                return given[name], name
            if equals and given.get(name) == wanted:
                return "true", name
    variable = engine.env.get(field, "")
    return (env[variable], variable) if variable in env else (None, "")


def _convert(text: str, kind: Any) -> Any:
    """Convert an option's value. Raises ValueError."""
    if kind is bool:
        return text.lower() not in ("false", "0")  # on its own, a flag means true
    if kind == (int | None):
        if text in ("auto", "-1", "0"):  # words for the engine's own choice
            return None
        scaled = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", text)
        return int(float(scaled[1]) * _SCALES[scaled[2]]) if scaled else int(text)
    if kind == (float | None):
        return float(text)
    return text
