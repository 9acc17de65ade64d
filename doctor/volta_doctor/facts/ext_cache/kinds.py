"""The caches of compiled code, a row each: where it lies, and what tells for what it was built.

What hashes everything that matters into a path (`keyed`) is never loaded when it no longer fits: it
only takes space. The others load what lies under a name, whatever it was built with.
"""

from typing import NamedTuple

_TORCH = r"(?P<tag>py\d+t?_(?:cu\d+|cpu))"
_ARCHS = r"(?P<archs>\d+[af]?(?:_\d+[af]?)*)"


class Place(NamedTuple):
    """Where a cache lies: below the value of `variable`.

    `groups` are the directories in it that hold entries, as patterns by level between slashes; the
    names in them tell tag, version and archs.
    """

    variable: str
    below: str = ""
    groups: tuple[str, ...] = ("",)


class Kind(NamedTuple):
    """One tool's cache: the first of its places whose variable is set is in use.

    `package` is the distribution that makes it. Entries of a `ninja` cache are directories with a
    build.ninja and, in the end, a library. `entry` is a pattern of those names that tell version
    and archs. `lock` is a file whose mere existence locks an entry: flock(2), which the others use,
    ends with the process that holds it.
    """

    name: str
    package: str
    places: tuple[Place, ...]
    keyed: bool = False
    ninja: bool = True
    entry: str = ""
    lock: str = ""


# {user} is the name of the process's user.
TEMPORARY = "/tmp"  # noqa: S108 - where torch looks, and not written
KINDS = (
    # torch/utils/cpp_extension.py (_get_build_directory), torch/utils/file_baton.py
    Kind(
        "torch_extensions",
        "torch",
        (
            Place("TORCH_EXTENSIONS_DIR"),
            Place("XDG_CACHE_HOME", "torch_extensions", (_TORCH,)),
            Place("HOME", ".cache/torch_extensions", (_TORCH,)),
        ),
        lock="lock",
    ),
    # apache/tvm-ffi python/tvm_ffi/cpp/extension.py; its lock is flock. SGLang's modules in it
    # have the architecture and TVM-FFI's version in their names (sglang jit_kernel/utils.py).
    Kind(
        "tvm-ffi",
        "apache-tvm-ffi",
        (Place("TVM_FFI_CACHE_DIR"), Place("HOME", ".cache/tvm-ffi")),
        entry=r".+__(?:cuda_)?arch_(?P<archs>[\d.]+[af]?)__tvmffi_(?P<version>[\w.+]+)",
    ),
    # flashinfer/jit/env.py (FLASHINFER_JIT_DIR, without the version before 0.5) and jit/core.py:
    # flock in cached_ops/tmp. Before 0.3 torch.utils.cpp_extension built it, with its lock.
    Kind(
        "flashinfer",
        "flashinfer-python",
        tuple(
            Place(
                variable,
                ".cache/flashinfer",
                (rf"(?P<version>\d+\.\d+[\w.+]*)/{_ARCHS}/cached_ops", f"{_ARCHS}/cached_ops"),
            )
            for variable in ("FLASHINFER_WORKSPACE_BASE", "HOME")
        ),
        keyed=True,
        lock="lock",
    ),
    # triton/knobs.py (cache_knobs), runtime/cache.py, compiler/compiler.py (metadata in *.json)
    Kind(
        "triton",
        "triton",
        (
            Place("TRITON_CACHE_DIR"),
            Place("TRITON_HOME", ".triton/cache"),
            Place("HOME", ".triton/cache"),
        ),
        keyed=True,
        ninja=False,
    ),
    # vllm/envs.py (VLLM_CACHE_ROOT), compilation/backends.py
    Kind(
        "vllm",
        "vllm",
        (
            Place("VLLM_CACHE_ROOT", "torch_compile_cache"),
            Place("XDG_CACHE_HOME", "vllm/torch_compile_cache"),
            Place("HOME", ".cache/vllm/torch_compile_cache"),
        ),
        keyed=True,
        ninja=False,
    ),
    # torch/_inductor/runtime/cache_dir_utils.py; its locks are flock
    Kind(
        "torchinductor",
        "torch",
        (
            Place("TORCHINDUCTOR_CACHE_DIR"),
            Place("TMPDIR", "torchinductor_{user}"),
            Place("", f"{TEMPORARY}/torchinductor_{{user}}"),
        ),
        keyed=True,
        ninja=False,
    ),
)
