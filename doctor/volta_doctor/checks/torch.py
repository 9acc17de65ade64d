"""Can the torch of each environment, and what came with it, run on Volta?"""

import re
from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from volta_doctor.arch import rules
from volta_doctor.catalog import Row, compat
from volta_doctor.checks.device_code import for_another_cuda
from volta_doctor.checks.environments import all_looked_at, each_env, volta_arch
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import few, numbers

# What the markers in torch's metadata ask of: only such hosts have these libraries as wheels.
_LINUX = {"platform_system": "Linux", "platform_machine": "x86_64", "extra": ""}


@check("torch-arch")
def torch_arch(facts: Facts, row: Row) -> Iterable[Finding]:
    """Without sm_70 code every kernel fails: 'no kernel image is available for execution'."""
    return each_env(facts, row, lambda env: _judge_torch(row, env))


def _judge_torch(row: Row, env: PythonEnv) -> Finding:
    if env.torch is None:
        if any(canonicalize_name(package.name) == "torch" for package in env.distributions):
            text = "torch is installed, but torch/version.py is not there."
            return row.unknown(text, subject=env.prefix)
        return row.skip("No torch is installed in it.", subject=env.prefix)
    built = f"CUDA {env.torch_cuda}" if env.torch_cuda else f"ROCm {env.torch_hip}"
    version = Evidence(f"torch/version.py in {env.prefix}", f"{env.torch}, {built}")
    if env.torch_cuda is None:
        if env.torch_hip is None:
            seen = Evidence(version.source, f"{env.torch}, cuda None")
            text = f"torch {env.torch} is a CPU build: it uses no GPU at all."
            return row.fail(text, seen, subject=env.prefix)
        text = f"torch {env.torch} is built for AMD's GPUs ({built})."
        return row.fail(text, version, subject=env.prefix)
    code, volta = env.torch_code, volta_arch()
    if code is None:
        return _judge_by_table(row, env, version)
    seen = Evidence(env.torch_library, rules.carries(code))
    pieces, most = code.sass.get(volta, 0), max(code.sass.values(), default=0)
    if code.problem and 2 * pieces < most:
        text = f"The device code of torch {env.torch} is not known in full: {env.torch_problem}."
        return row.unknown(text, version, seen, subject=env.prefix)
    if pieces and 2 * pieces >= most:
        text = f"torch {env.torch} carries sm_{volta} code."
        return row.ok(text, version, seen, subject=env.prefix)
    if pieces:
        text = f"torch {env.torch} has sm_{volta} code in {pieces} pieces of {most} only."
        return row.fail(text, version, seen, subject=env.prefix)
    if rules.judge(code, {}, rules.volta(), None).status == "runs after JIT":
        text = f"torch {env.torch} has only PTX for this GPU: its first run compiles it."
        return row.info(text, version, seen, subject=env.prefix)
    carries = rules.carries(code)
    text = f"torch {env.torch} for CUDA {env.torch_cuda} has no sm_{volta} code: {carries}."
    return row.fail(text, version, seen, subject=env.prefix)


def _judge_by_table(row: Row, env: PythonEnv, version: Evidence) -> Finding:
    """Judge a torch whose libraries cannot be read, if it is one of PyTorch's own wheels."""
    cuda = env.torch_cuda or ""
    try:
        torch = Version(env.torch or "")
        official = torch.local in (None, f"cu{cuda.replace('.', '')}")
        build = compat().torch_build(torch.public, cuda) if official else None
    except InvalidVersion:
        build = None
    if build is None or not env.torch_problem:
        reason = env.torch_problem or "Its device code is not recorded"
        text = f"{reason}, and no table tells of torch {env.torch} for CUDA {cuda}."
        return row.unknown(text, version, subject=env.prefix)
    table = Evidence("compat.yaml", f"torch {build.versions}, {', '.join(build.cuda)}")
    wheels = f"The wheels of torch {env.torch} for CUDA {env.torch_cuda} carry"
    if build.sm_70:
        return row.ok(f"{wheels} sm_70 code.", version, table, subject=env.prefix)
    return row.fail(f"{wheels} no sm_70 code.", version, table, subject=env.prefix)


@check("cu13-lib")
def cu13_lib(facts: Facts, row: Row) -> Iterable[Finding]:
    """A CUDA 13 build has no code for Volta, though the R580 driver reports CUDA 13."""
    return each_env(facts, row, lambda env: _judge_libraries(facts, row, env))


def _judge_libraries(facts: Facts, row: Row, env: PythonEnv) -> Finding:
    found = [*_packages_of_13(env), *_links_to_13(facts, env)]
    if found:
        text = f"Built for CUDA 13: {few([evidence.text for evidence in found])}."
        return row.fail(text, *found, subject=env.prefix, count=len(found))
    all_looked_at(facts, env)
    count = len(env.distributions) + len(env.conda)
    return row.ok(f"None of its {count} packages is built for CUDA 13.", subject=env.prefix)


def _too_new() -> int:
    """Return the first CUDA without Volta: 13."""
    return int(compat().toolkit.nvcc_below.split(".")[0])


def _packages_of_13(env: PythonEnv) -> Iterator[Evidence]:
    table = compat().cuda_13
    tag = re.compile(rf"(?:^|[^a-z0-9])cu(?:da)?_?{_too_new()}")
    for package in env.distributions:
        name, local = canonicalize_name(package.name), package.version.partition("+")[2]
        if name in table.exempt:
            continue
        of_nvidia = name in table.names and _major(package.version) >= _too_new()
        if of_nvidia or tag.search(name) or tag.search(f"+{local}"):
            yield Evidence(f"dist-info in {env.prefix}", f"{package.name} {package.version}")
    for item in env.conda:
        of_nvidia = item.name in table.names and _major(item.version) >= _too_new()
        if of_nvidia or tag.search(f"-{item.build}"):
            yield Evidence(f"{env.prefix}/conda-meta", f"{item.name} {item.version} {item.build}")
    named = any(
        canonicalize_name(p.name) == "torch" and tag.search(p.version) for p in env.distributions
    )
    if env.torch_cuda and not named and _major(env.torch_cuda) >= _too_new():
        text = f"torch {env.torch} (CUDA {env.torch_cuda})"
        yield Evidence(f"torch/version.py in {env.prefix}", text)


def _links_to_13(facts: Facts, env: PythonEnv) -> Iterator[Evidence]:
    for item in facts.so_archs.data.objects if facts.so_archs.data else []:
        runtime = re.fullmatch(r"libcudart\.so\.(\d+)(?:\.\d+)?", item.runtime or "")
        is_of_13 = runtime and int(runtime[1]) >= _too_new()
        if item.env == env.prefix and is_of_13 and not for_another_cuda(item, env):
            yield Evidence(item.path, f"{item.path.rsplit('/', 1)[-1]} (links {item.runtime})")


@check("torch-libs")
def torch_libs(facts: Facts, row: Row) -> Iterable[Finding]:
    """A library that another package has replaced fails when torch is imported, or later."""
    return each_env(facts, row, lambda env: _judge_pins(row, env))


def _judge_pins(row: Row, env: PythonEnv) -> Finding:
    installed: dict[str, str] = {
        canonicalize_name(package.name): package.version for package in env.distributions
    }
    torch = next((p for p in env.distributions if canonicalize_name(p.name) == "torch"), None)
    if torch is None:
        return row.skip("No torch is installed in it as a package.", subject=env.prefix)
    older, other = [], []
    for name, wanted in _pins(torch.requires):
        there = installed.get(name)
        seen = Evidence(f"METADATA of torch in {env.prefix}", f"{name}=={wanted}")
        if twin := next((n for n in installed if n != name and _without_cuda(n, name)), None):
            older.append((f"{twin} {installed[twin]} overwrites {name} {wanted}", seen))
        elif there is None:
            other.append((f"{name} {wanted} is not installed", seen))
        elif numbers(there) < numbers(wanted):
            older.append((f"{name} is {there}, older than {wanted}", seen))
        elif numbers(there) > numbers(wanted):
            other.append((f"{name} is {there}, newer than {wanted}", seen))
    told = few([text for text, _ in older + other])
    text = f"torch {torch.version} was built with other libraries: {told}."
    evidence = [seen for _, seen in older + other]
    if older:
        return row.fail(text, *evidence, subject=env.prefix)
    if other:
        return row.warn(text, *evidence, subject=env.prefix)
    return row.ok("Its CUDA libraries have the versions that torch pins.", subject=env.prefix)


def _pins(requires: list[str]) -> Iterator[tuple[str, str]]:
    """Yield NVIDIA's libraries that torch wants in one version, as its metadata says."""
    for text in requires:
        try:
            needed = Requirement(text)
        except InvalidRequirement:
            continue
        pin = re.fullmatch(r"==([\d.]+)", str(needed.specifier))
        applies = needed.marker is None or needed.marker.evaluate(_LINUX)
        if pin and applies and needed.name.startswith("nvidia-"):
            yield canonicalize_name(needed.name), pin[1]


def _without_cuda(name: str, other: str) -> bool:
    """Say whether two packages are one library for different CUDA versions."""
    return re.sub(r"-cu\d+$", "", name) == re.sub(r"-cu\d+$", "", other)


def _major(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match[0]) if match else 0


@check("cudnn")
def cudnn(facts: Facts, row: Row) -> Iterable[Finding]:
    """The kernels of later releases do not run on Volta."""
    return each_env(facts, row, lambda env: _judge_cudnn(row, env))


def _judge_cudnn(row: Row, env: PythonEnv) -> Finding:
    if env.cudnn is None:
        return row.skip("It brings no cuDNN along.", subject=env.prefix)
    below = compat().cudnn.below
    seen = Evidence(env.cudnn_source, env.cudnn)
    parts, limit = numbers(env.cudnn), numbers(below)
    if not parts or (len(parts) == 1 and parts[0] == limit[0]):
        text = f"{env.cudnn_source} tells no more of its version than {env.cudnn or 'nothing'}."
        return row.unknown(text, seen, subject=env.prefix)
    if parts >= limit:
        text = f"cuDNN {env.cudnn} has no sm_70 code; {below} was the first without."
        return row.warn(text, seen, subject=env.prefix)
    return row.ok(f"cuDNN {env.cudnn} is older than {below}.", seen, subject=env.prefix)
