"""A plan as a stack.yaml, which read_stack() takes."""

from pathlib import Path

import msgspec
from msgspec import UNSET

from volta_doctor.files import write
from volta_provision.errors import StackError
from volta_provision.plan.candidates import Candidate
from volta_provision.stack import Serve, Stack

_HEAD = "# Made by `volta-stack plan`.\n"


def stack_of(one: Candidate, model: str) -> Stack:
    """Return the stack that serves a candidate; `model` is a row of models.yaml, or a path."""
    flags = one.flags
    return Stack(
        model=model,
        profile="v100",
        engine=one.engine.name,
        serve=Serve(
            max_model_len=one.wanted.context,
            max_num_seqs=one.wanted.concurrency,
            tensor_parallel_size=flags.tensor_parallel_size or UNSET,
            enable_expert_parallel=flags.enable_expert_parallel or UNSET,
            gpu_memory_utilization=flags.gpu_memory_utilization or UNSET,
            dtype=flags.dtype or UNSET,
            kv_cache_dtype=flags.kv_cache_dtype or UNSET,
            enforce_eager=flags.enforce_eager or UNSET,
            disable_custom_all_reduce=flags.disable_custom_all_reduce or UNSET,
        ),
    )


def write_stack(stack: Stack, path: Path, force: bool) -> None:
    """Write stack.yaml whole or not at all. Raises StackError where it is there already."""
    try:
        if path.is_dir():
            raise StackError(f"{path} is a directory")
        if path.exists() and not force:
            raise StackError(f"{path} is there already; --force replaces it")
        write(path, _HEAD.encode() + msgspec.yaml.encode(stack))
    except OSError as error:
        raise StackError(f"{path}: {error.strerror}") from error
