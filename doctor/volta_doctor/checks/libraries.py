"""Which CUDA driver library and runtime would a server load?"""

import re
from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.python_envs.loader import CudaLibrary, LibrarySearch
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import numbers

_DRIVER = "libcuda.so.1"


@check("libcuda-dup")
def libcuda_dup(facts: Facts, row: Row) -> Iterable[Finding]:
    """Judge what the dynamic linker finds for each server."""
    for search in facts.python_envs.need().searches:
        yield _judge(facts, row, search)


def _judge(facts: Facts, row: Row, search: LibrarySearch) -> Finding:
    seen = [Evidence(item.via, f"{item.path} ({item.real})") for item in search.libraries]
    drivers = [item for item in search.libraries if item.name == _DRIVER]
    loaded = facts.modules.data.loaded_version if facts.modules.data else None
    if drivers and (text := _mismatch(drivers[0], loaded)):
        return row.fail(text, *seen, subject=search.name)
    if text := _doubled(facts, search, drivers):
        return row.warn(text, *seen, subject=search.name)
    if search.problem:
        text = f"Not all could be looked at: {search.problem}."
        return row.unknown(text, *seen, subject=search.name)
    if not drivers:
        text = f"No {_DRIVER} is on the search path."
        return row.ok(text, *seen, subject=search.name)
    return row.ok(f"{drivers[0].path} is the only {_DRIVER}.", *seen, subject=search.name)


def _mismatch(driver: CudaLibrary, loaded: str | None) -> str:
    """Say why CUDA would refuse to start with 803, empty where it need not."""
    version = re.search(r"libcuda\.so\.(\d+(?:\.\d+)+)$", driver.real)
    if version is None or loaded is None or version[1] == loaded:
        return ""
    if _is_compat(driver) and numbers(version[1]) > numbers(loaded):
        return ""  # what cuda-compat is for
    return (
        f"{driver.path} is of driver {version[1]}, and {loaded} is loaded:"
        " CUDA ends with error 803."
    )


def _is_compat(library: CudaLibrary) -> bool:
    return "compat" in f"{library.path} {library.real}"


def _doubled(facts: Facts, search: LibrarySearch, drivers: list[CudaLibrary]) -> str:
    """Say what is there twice or comes first, empty where nothing does."""
    if drivers and _is_compat(drivers[0]):
        return f"cuda-compat comes first: {drivers[0].path} in place of the driver's own."
    by_name: dict[str, list[CudaLibrary]] = {}
    for item in search.libraries:
        by_name.setdefault(item.name, []).append(item)
    for name, items in by_name.items():
        if items[1:]:
            paths = ", ".join(item.path for item in items)
            return f"{len(items)} files are reachable as {name}: {paths}."
    for env in facts.python_envs.need().envs:
        own = {item.name: item for item in env.runtimes if search.name in env.used_by}
        for item in search.libraries:
            if item.via == "LD_LIBRARY_PATH" and item.name in own:
                path = own[item.name].path
                return f"LD_LIBRARY_PATH puts {item.path} before the environment's own {path}."
    return ""
