"""The `serve` section: every server of language models on this host, and how it was told to run.

A server is a unit that starts one, or a process that is one. Here is what it was told: its command
line, the environment variables that matter to GPUs, and the flags in them, under one name
whatever the engine calls them.
"""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class Flags(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Serving flags in vLLM's names; None where the server was not told, so its default holds."""

    model: str | None = None
    tensor_parallel_size: int | None = None
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


class Server(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server.

    `name` is its unit, else `pid N`: the subject of findings about it. `engine` is embedded, vllm,
    1cat-vllm, lmdeploy, sglang, llamacpp, ollama or tgi. `pids` are its processes, none while it
    is down. `argv` and `env` are free of secrets; `env` is None, for `env_problem`, where this
    user may not see it. `python` is its interpreter and `prefix` that one's environment, None for
    a server that is no Python program. `home` is where its user's caches lie.
    """

    name: str
    engine: str
    source: str
    argv: list[str] = []
    flags: Flags = Flags()
    unit: str | None = None
    pids: list[int] = []
    env: dict[str, str] | None = None
    env_problem: str = ""
    user: str | None = None
    home: str | None = None
    python: str | None = None
    prefix: str | None = None
    model_dir: str | None = None


class ServeFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The servers; `hidden` counts processes whose command line this user may not see."""

    servers: list[Server] = []
    hidden: int = 0


def find(probe: Probe) -> ServeFacts:
    """Find the servers; other collectors call it through `probe.once(find)`."""
    raise CannotLook("not collected yet")


def collect(probe: Probe) -> ServeFacts:
    return probe.once(find)
