"""Do the extensions of each environment carry code for Volta?"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from volta_doctor.arch import rules
from volta_doctor.catalog import Row, compat
from volta_doctor.checks.environments import nothing, torch_tag, volta_arch
from volta_doctor.checks.registry import check
from volta_doctor.facts.fatbin import DeviceCode, number
from volta_doctor.facts.model import Facts
from volta_doctor.facts.python_envs import RELEASE, PythonEnv
from volta_doctor.facts.so_archs import SharedObject, interpreter_tag
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import few

_STUB = "NVIDIA's own, without a kernel: the empty stub of nvcc's default architecture"
_KERNELS = re.compile(r"/volta_runtime/_kernels\.[^/]*so$")


class Sorted(NamedTuple):
    """The files of one place that carry device code, by whether a Volta card runs them."""

    machine_code: list[SharedObject]
    ptx: list[SharedObject]
    unused: dict[str, str]
    none: dict[str, str]
    unread: list[str]


@check("ext-arch")
def ext_arch(facts: Facts, row: Row) -> Iterable[Finding]:
    """One finding for each environment, and for each cache of compiled extensions."""
    found, envs = facts.so_archs.need(), facts.python_envs.need()
    places: dict[str, list[SharedObject]] = {env.prefix: [] for env in envs.envs}
    unread = {env.prefix: [env.problem] for env in envs.envs if env.problem} | found.unread
    places |= {name: [] for name in unread}
    for item in found.objects:
        places.setdefault(item.env, []).append(item)
    driver = facts.modules.data.loaded_version if facts.modules.data else None
    for name, objects in places.items():
        split = sort(objects, envs.envs, unread.get(name, []), driver)
        yield _judge_place(row, name, split)
    if not places:
        yield nothing(row, envs.problem, "No server of this host runs in a Python environment.")


def sort(
    objects: list[SharedObject], envs: list[PythonEnv], unread: list[str], driver: str | None
) -> Sorted:
    """Sort the files of a place; `unread` names what of it was not looked at."""
    split = Sorted([], [], {}, {}, list(unread))
    for item in objects:
        if not item.code and not item.problem:
            continue
        reader = driver if item.ptx_isa else None
        verdict = rules.judge(item.code, item.ptx_isa, rules.volta(), reader)
        if verdict.status == "runs":
            split.machine_code.append(item)
        elif item.problem or verdict.status == "not known":
            split.unread.append(f"{item.path}: {item.problem or verdict.reason}")
        elif verdict.status == "runs after JIT":
            split.ptx.append(item)
        elif reason := unused(item, envs):
            split.unused[item.path] = reason
        else:
            split.none[item.path] = verdict.reason
    return split


def _judge_place(row: Row, name: str, split: Sorted) -> Finding:
    volta, bad = volta_arch(), split.none
    seen = [Evidence(path, reason) for path, reason in bad.items()]
    seen += [Evidence(item.path, rules.carries(item.code)) for item in split.ptx]
    seen += [Evidence(path, reason) for path, reason in split.unused.items()]
    seen = seen or [Evidence(item.path, rules.carries(item.code)) for item in split.machine_code]
    if bad:
        files = few([f"{_name(path)} ({reason})" for path, reason in bad.items()])
        text = f"Without code that runs on a V100: {files}."
        return row.fail(text, *seen, subject=name, count=len(bad))
    if split.unread:
        return row.unknown(f"Not all was looked at: {few(split.unread)}.", *seen, subject=name)
    if split.ptx:
        files = few([_name(item.path) for item in split.ptx])
        text = f"Without sm_{volta} code, but with PTX that the driver compiles: {files}."
        return row.info(text, *seen, subject=name)
    if split.unused:
        reasons = few([f"{_name(path)} ({why})" for path, why in split.unused.items()])
        text = f"Without sm_{volta} code, which a Volta card does not run: {reasons}."
        return row.info(text, *seen, subject=name)
    count = len(split.machine_code)
    text = (
        f"sm_{volta} code is in all files with device code ({count})."
        if count
        else "No file carries device code."
    )
    return row.ok(text, *seen, subject=name)


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def unused(item: SharedObject, envs: list[PythonEnv]) -> str:
    """Say why no Volta card runs an extension, empty where one may."""
    env = next((env for env in envs if env.prefix == item.env), None)
    cache = re.search(r"/(py\d+t?_(?:cu\d+|cpu))$", item.env)
    if cache and cache[1] not in map(torch_tag, envs) and not any(env.problem for env in envs):
        return f"no environment here is {cache[1]}"
    archs = [*item.code.sass, *item.code.ptx]
    if compat().is_nvidias(item.path) and all(number(arch) < int(volta_arch()) for arch in archs):
        return _STUB
    for other in compat().other_gpus:
        if fnmatchcase(item.path, f"*[/!]{other.file}"):
            return other.source
    return for_another_cuda(item, env)


def stub(path: str, code: DeviceCode) -> str:
    """Say that a library of NVIDIA's shows no kernel for any card, empty where it shows some."""
    archs = [*code.sass, *code.ptx]
    alone = len(archs) == 1 and archs[0] in compat().nvidia_libraries.stubs
    return _STUB if alone and compat().is_nvidias(path) else ""


def for_another_cuda(item: SharedObject, env: PythonEnv | None) -> str:
    """Say why torch is of another CUDA than an extension by its name, empty where it may be none.

    bitsandbytes has an extension for each CUDA, and loads that of torch's.
    """
    named = re.search(r"_cuda(\d{2,3})\.so$", item.path)
    too_new = compat().toolkit.nvcc_below
    if named is None:
        return ""
    if env and env.torch_cuda:
        others = named[1] != env.torch_cuda.replace(".", "")
        return f"torch is for CUDA {env.torch_cuda}" if others else ""
    if int(named[1]) >= int(too_new.replace(".", "")):
        return f"for a torch of CUDA {too_new} or newer, which no Volta card runs"
    return ""


@check("kernel-audit")
def kernel_audit(facts: Facts, row: Row) -> Finding:
    """The release's own kernels, compiled on this host or on a builder."""
    found, release = facts.so_archs.need(), facts.release.need()
    if release.manifest.profile != "v100":
        return row.skip(f"The release is for {release.manifest.profile}: it has no GPU kernels.")
    env = next((env for env in facts.python_envs.need().envs if RELEASE in env.used_by), None)
    if env is None or env.problem:
        reason = env.problem if env else "nothing is recorded of it"
        return row.unknown(f"The release's environment cannot be judged: {reason}.")
    kernels = [o for o in found.objects if o.env == env.prefix and _KERNELS.search(o.path)]
    if not kernels:
        if unread := found.unread.get(env.prefix):
            text = f"It was not found, but not all was looked at: {few(unread)}."
            return row.unknown(text, subject=env.prefix)
        seen = Evidence(env.prefix, "no volta_runtime/_kernels*.so with device code")
        text = "The release has no compiled kernels for the GPU."
        return row.fail(text, seen, subject=env.prefix)
    fitting = [item for item in kernels if interpreter_tag(item.path) in (env.tag, None)]
    item = (fitting or kernels)[0]
    seen, volta = Evidence(item.path, rules.carries(item.code)), volta_arch()
    if not fitting:
        text = (
            f"_kernels is built for {interpreter_tag(item.path)}, and the release runs {env.tag}."
        )
        return row.fail(text, seen, subject=env.prefix)
    if item.problem:
        return row.unknown(f"_kernels cannot be read: {item.problem}.", seen, subject=env.prefix)
    if volta not in item.code.sass:
        text = f"_kernels has no sm_{volta} code: {rules.carries(item.code)}."
        return row.fail(text, seen, subject=env.prefix)
    if others := [f"sm_{arch}" for arch in item.code.sass if arch != volta]:
        text = f"Beside sm_{volta}, _kernels carries {', '.join(others)}, which no V100 runs."
        return row.info(text, seen, subject=env.prefix)
    return row.ok(f"_kernels has sm_{volta} code, for {env.tag}.", seen, subject=env.prefix)
