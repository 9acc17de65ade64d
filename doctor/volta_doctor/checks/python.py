"""Do the compiled parts of an environment belong to its interpreter and its host?"""

import re
from collections.abc import Iterable, Iterator

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from volta_doctor.catalog import Row
from volta_doctor.catalog.engines import engines
from volta_doctor.checks.environments import all_looked_at, each_env
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import few, numbers


def fits(wheel_tag: str, interpreter: str) -> bool:
    """Say whether an interpreter (cp311) imports what a wheel of this tag holds (PEP 425)."""
    python, abi = [*wheel_tag.split("-"), "", ""][:2]
    minor = re.fullmatch(r"(?:cp|py)3(\d+)", python)
    own = re.fullmatch(r"cp3(\d+)t?", interpreter)
    if abi.rstrip("m") == interpreter:  # up to Python 3.7 an ABI ended with m
        return True
    if re.fullmatch(r"py[23]", python):
        return abi == "none"
    if abi not in ("abi3", "none") or not minor or not own:
        return False
    return int(minor[1]) <= int(own[1]) and not (abi == "abi3" and interpreter.endswith("t"))


@check("python-version")
def python_version(facts: Facts, row: Row) -> Iterable[Finding]:
    """A module for another Python cannot be imported, whatever pip says is installed."""
    return each_env(facts, row, lambda env: _judge(facts, row, env))


def _judge(facts: Facts, row: Row, env: PythonEnv) -> Finding:
    foreign = [*_foreign_wheels(env), *_foreign_modules(facts, env)]
    if foreign:
        names = few([evidence.text for evidence in foreign])
        text = f"Not built for Python {env.python} ({env.tag}): {names}."
        return row.fail(text, *foreign, subject=env.prefix, count=len(foreign))
    if found := _judge_engine(row, env):
        return found
    all_looked_at(facts, env)
    compiled = sum(1 for package in env.distributions if package.tags)
    text = f"Its {compiled} compiled packages fit Python {env.python} ({env.tag})."
    return row.ok(text, subject=env.prefix)


def _foreign_wheels(env: PythonEnv) -> Iterator[Evidence]:
    for package in env.distributions:
        if package.tags and not any(fits(tag, env.tag) for tag in package.tags):
            text = f"{package.name} {package.version} ({package.tags[0]})"
            yield Evidence(f"WHEEL of {package.name} in {env.prefix}", text)


def _foreign_modules(facts: Facts, env: PythonEnv) -> Iterator[Evidence]:
    for item in facts.so_archs.data.objects if facts.so_archs.data else []:
        if item.env == env.prefix and item.tag:
            yield Evidence(item.path, f"{item.path.rsplit('/', 1)[-1]} ({item.tag})")


def _judge_engine(row: Row, env: PythonEnv) -> Finding | None:
    """Hold an environment against what its engine asks for; None where it fits."""
    for package in env.distributions:
        engine = engines().get(canonicalize_name(package.name))
        if engine is None or not engine.python:
            continue
        version = Evidence(f"dist-info in {env.prefix}", f"{package.name} {package.version}")
        if not f"{env.python}.".startswith(f"{engine.python}."):
            text = f"{package.name} is made for Python {engine.python}, this is {env.python}."
            return row.warn(text, version, subject=env.prefix)
        if not SpecifierSet(engine.glibc_for, prereleases=True).contains(package.version):
            continue
        needs = f"{package.name} {package.version} needs glibc {engine.glibc}"
        if env.glibc is None:
            text = f"{needs}, and this host's is not known."
            return row.unknown(text, version, subject=env.prefix)
        if numbers(env.glibc) < numbers(engine.glibc):
            seen = Evidence("libc.so.6", env.glibc)
            text = f"{needs}, and this is {env.glibc}."
            return row.warn(text, version, seen, subject=env.prefix)
    return None
