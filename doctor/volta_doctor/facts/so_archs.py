"""The `so_archs` section: the machine code and PTX in every extension that a server may load."""

import re
import time
from collections.abc import Iterator

import msgspec

from volta_doctor.facts import elf, ext_cache, fatbin, python_envs
from volta_doctor.facts.ext_cache.kinds import KINDS
from volta_doctor.facts.fatbin import DeviceCode
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.probe import CannotLook, Probe

LIMIT_S = 8.0  # a cold environment on a disk; a warm one takes a tenth of a second
# Caches whose libraries are loaded whatever card they were built for.
_LOADED_BY_NAME = {kind.name for kind in KINDS if kind.ninja and not kind.keyed}
# torch and NVIDIA's own libraries are judged by their versions.
_JUDGED = ("torch", "nvidia")
_WITHOUT_MODULES = ("__pycache__", ".git", "node_modules")
_SHARED_OBJECT = re.compile(r"\.so(?:\.\d+)*$")
_TAG = re.compile(r"\.cpython-(\d+t?)-[\w-]+\.so$")
_CUDART = re.compile(r"libcudart\.so\.\d+")


class SharedObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One file of interest: it carries device code, asks for a CUDA runtime or has a tag.

    `env` is the prefix of its environment, or the directory of its cache. `tag` is that of its
    name where it is for another Python (cp312) and no brother of it is for this one. `runtime` is
    the CUDA runtime that it links. `ptx_isa` has the ISA version (8.7) of its PTX by architecture,
    where it is known. `problem` says what of it could not be read.
    """

    path: str
    env: str
    code: DeviceCode
    ptx_isa: dict[str, str] = {}
    runtime: str | None = None
    tag: str | None = None
    problem: str = ""


class SoArchsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The files of interest; `looked_at` counts all that were opened.

    `unread` names what was not looked at, by environment or cache, and why.
    """

    objects: list[SharedObject]
    looked_at: int
    unread: dict[str, list[str]]


def interpreter_tag(name: str) -> str | None:
    """Return the tag in a module's file name: cp311; None where it has none, as abi3 has."""
    match = _TAG.search(name)
    return f"cp{match[1]}" if match else None


def collect(probe: Probe) -> SoArchsFacts:
    """Look into the environments and the caches, for at most LIMIT_S seconds."""
    deadline = time.monotonic() + LIMIT_S
    envs = probe.once(python_envs.find).envs
    places: list[tuple[str, str, PythonEnv | None]] = [
        (env.prefix, directory, env) for env in envs for directory in _directories(env)
    ]
    places += [
        (cache.path, f"{cache.path}/{extension.name}", None)
        for cache in probe.once(ext_cache.find).caches
        for extension in cache.extensions
        if cache.kind in _LOADED_BY_NAME and not extension.arch
    ]
    objects: list[SharedObject] = []
    unread: dict[str, list[str]] = {env.prefix: [env.problem] for env in envs if env.problem}
    looked_at = 0
    for name, directory, env in places:
        complaints: list[str] = []
        for path, tag in _modules(probe, directory, env, complaints):
            if time.monotonic() > deadline:
                complaints.append(f"{path} and what follows: {LIMIT_S:g} s were over")
                break
            looked_at += 1
            if found := read_object(probe, path, name, tag):
                objects.append(found)
        if complaints:
            unread.setdefault(name, []).extend(complaints)
    return SoArchsFacts(objects=objects, looked_at=looked_at, unread=unread)


def read_object(probe: Probe, path: str, env: str, tag: str | None) -> SharedObject | None:
    """Return what is to be known of a file, None where that is nothing."""
    code, isa, runtime, problem = DeviceCode(), dict[str, str](), None, ""
    try:
        with probe.open(path) as file:
            found = elf.sections(file)
            survey = fatbin.survey(file, found)
            code, isa, problem = survey.code, survey.ptx_isa, survey.code.problem
            needed = elf.needed(file, found)
        runtime = next((name for name in needed if _CUDART.match(name)), None)
    except CannotLook as reason:
        problem = str(reason)
    except elf.NotElf:
        return None
    except elf.NotRead as reason:
        problem = f"it {reason}"
    if not (code or runtime or tag or problem):
        return None
    return SharedObject(
        path=path, env=env, code=code, ptx_isa=isa, runtime=runtime, tag=tag, problem=problem
    )


def _directories(env: PythonEnv) -> list[str]:
    sources = [d.source for d in env.distributions if d.source]
    return list(dict.fromkeys([*env.sites, *sources]))


def _modules(
    probe: Probe, directory: str, env: PythonEnv | None, complaints: list[str]
) -> Iterator[tuple[str, str | None]]:
    """Yield the shared objects below a directory, each with the tag of another Python it has."""
    skip = {*_WITHOUT_MODULES, *(f"{directory}/{name}" for name in _JUDGED)}
    for place, files in probe.walk(directory, skip, complaints.append):
        names = [name for name in files if _SHARED_OBJECT.search(name)]
        fitting = {_TAG.sub("", n) for n in names if env and interpreter_tag(n) == env.tag}
        for name in names:
            tag = interpreter_tag(name) if env else None
            foreign = tag and env and tag != env.tag and _TAG.sub("", name) not in fitting
            yield f"{place}/{name}", tag if foreign else None
