"""Attention libraries that a Volta card cannot run."""

from collections.abc import Iterator

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from volta_doctor.attention_backends import NEWER_GPU
from volta_doctor.catalog import Row
from volta_doctor.checks.environments import environment_of
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import environment, on_volta, per_server, told, with_variable
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.facts.serve import Server
from volta_doctor.findings import Evidence, Finding

_FORK_FIXED = Version("1.2.0")  # 1CatAI/1Cat-vLLM #24
_SAMPLER = "VLLM_USE_FLASHINFER_SAMPLER"
_VLLMS = ("vllm", "1cat-vllm")


@check("xformers-flash-attn-volta")
def attention_library(facts: Facts, row: Row) -> Iterator[Finding]:
    """The engine starts, and the first request dies or gives nonsense."""

    def judge(server: Server) -> Finding:
        flags, name = server.flags, server.name
        if server.prefix is None:
            if server.python_problem:
                raise Missing(f"Its Python environment is not known: {server.python_problem}.")
            return row.skip("It is no Python program.", subject=name)
        if not on_volta(facts, server):
            return row.skip("It uses no Volta card.", subject=name)
        backend = (flags.attention_backend or "").upper()
        if library := NEWER_GPU.get(backend):
            text = f"The attention backend is {backend}, and {library} does not run on Volta."
            return row.fail(text, told(server), _backend(server), subject=name)
        if backend == "XFORMERS" and (flags.dtype or "").lower() in ("bfloat16", "bf16"):
            text = "xFormers is to compute in bfloat16, which it does on A100 and newer only."
            return row.fail(text, told(server), _backend(server), subject=name)
        env = environment_of(facts, server.name)
        if server.engine == "1cat-vllm" and backend in ("", "FLASH_ATTN_V100"):
            version = _version(env, "1cat-vllm")
            if version is None:
                raise Missing(f"1Cat-vLLM in {env.prefix} has no readable version.")
            if version < _FORK_FIXED:
                seen = Evidence(env.prefix, f"1cat-vllm {version}")
                text = (
                    f"1Cat-vLLM {version}: its FLASH_ATTN_V100 gives incoherent output;"
                    f" {_FORK_FIXED} does not."
                )
                return row.warn(text, seen, told(server), subject=name)
        sampler = _version(env, "flashinfer-python")
        if sampler and server.engine in _VLLMS and environment(server).get(_SAMPLER) != "0":
            seen = Evidence(env.prefix, f"flashinfer-python {sampler}")
            setting = environment(server).get(_SAMPLER, "not set")
            text = f"vLLM samples with FlashInfer {sampler}, as {_SAMPLER} is {setting}."
            steps = with_variable(server, row.id, _SAMPLER, "0")
            return row.warn(text, seen, subject=name, steps=steps)
        shown = f"attention backend {backend}" if backend else "no attention backend is chosen"
        return row.ok(f"Nothing needs a newer GPU: {shown}.", subject=name)

    return per_server(facts, row, judge)


def _backend(server: Server) -> Evidence:
    flags = server.flags
    text = f"attention backend {flags.attention_backend}, dtype {flags.dtype or 'not given'}"
    return Evidence(server.name, text)


def _version(env: PythonEnv, package: str) -> Version | None:
    for distribution in env.distributions:
        if canonicalize_name(distribution.name) == package:
            try:
                return Version(distribution.version)
            except InvalidVersion:
                return None
    return None
