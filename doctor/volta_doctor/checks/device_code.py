"""Do the extensions of each environment carry code for Volta?"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from volta_doctor.catalog import Row, compat
from volta_doctor.checks.environments import archs, nothing, runs_from_ptx, volta_arch
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.python_envs import RELEASE, PythonEnv
from volta_doctor.facts.so_archs import SharedObject, interpreter_tag
from volta_doctor.findings import Evidence, Finding

_KERNELS = re.compile(r"/volta_runtime/_kernels\.[^/]*so$")


@check("ext-arch")
def ext_arch(facts: Facts, row: Row) -> Iterable[Finding]:
    """One finding for each file with device code, one for each place that was not looked at."""
    found, envs = facts.so_archs.need(), facts.python_envs.need()
    by_prefix = {env.prefix: env for env in envs.envs}
    objects = [item for item in found.objects if item.code or item.problem]
    for item in objects:
        yield _judge_object(row, item, by_prefix.get(item.env))
    for name, reasons in found.unread.items():
        more = f" (and {len(reasons) - 1} more)" if reasons[1:] else ""
        yield row.unknown(f"Not all was looked at: {reasons[0]}{more}.", subject=name)
    if objects or found.unread:
        return
    if by_prefix:
        yield row.ok(f"None of the {found.looked_at} shared objects has device code.")
    else:
        text = "No server of this host runs in a Python environment."
        yield nothing(row, envs.problem, text)


def _judge_object(row: Row, item: SharedObject, env: PythonEnv | None) -> Finding:
    seen, volta = Evidence(item.path, archs(item.code)), volta_arch()
    if volta in item.code.sass:
        return row.ok(f"It carries sm_{volta} code.", seen, subject=item.path)
    if item.problem:
        return row.unknown(f"It cannot be read: {item.problem}.", seen, subject=item.path)
    if runs_from_ptx(item.code):
        text = f"It has no sm_{volta} code, only PTX: the driver compiles it at its first run."
        return row.info(text, seen, subject=item.path)
    if reason := _unused(item, env):
        text = f"It has no sm_{volta} code, and a Volta card does not run it: {reason}."
        return row.info(text, seen, subject=item.path)
    text = f"It has no code that runs on a V100: {archs(item.code)}."
    return row.fail(text, seen, subject=item.path)


def _unused(item: SharedObject, env: PythonEnv | None) -> str:
    """Say why no Volta card runs an extension, empty where one may."""
    for other in compat().other_gpus:
        if fnmatchcase(item.path, f"*/{other.file}"):
            return other.source
    for_cuda = re.search(r"_cuda(\d{2,3})\.so$", item.path)  # bitsandbytes has one for each CUDA
    if for_cuda and env and env.torch_cuda and for_cuda[1] != env.torch_cuda.replace(".", ""):
        return f"torch is for CUDA {env.torch_cuda}"
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
            return row.unknown(f"It was not found, but not all was looked at: {unread[0]}.")
        seen = Evidence(env.prefix, "no volta_runtime/_kernels*.so with device code")
        return row.fail("The release has no compiled kernels for the GPU.", seen)
    fitting = [item for item in kernels if interpreter_tag(item.path) in (env.tag, None)]
    item = (fitting or kernels)[0]
    seen, volta = Evidence(item.path, archs(item.code)), volta_arch()
    if not fitting:
        text = f"It is built for {interpreter_tag(item.path)}, and the release runs {env.tag}."
        return row.fail(text, seen, subject=item.path)
    if item.problem:
        return row.unknown(f"It cannot be read: {item.problem}.", seen, subject=item.path)
    if volta not in item.code.sass:
        text = f"It has no sm_{volta} code: {archs(item.code)}."
        return row.fail(text, seen, subject=item.path)
    if others := [f"sm_{arch}" for arch in item.code.sass if arch != volta]:
        text = f"Beside sm_{volta} it carries {', '.join(others)}, which no V100 runs."
        return row.info(text, seen, subject=item.path)
    return row.ok(f"sm_{volta} code for {env.tag}.", seen, subject=item.path)
