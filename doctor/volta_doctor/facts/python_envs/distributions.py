"""What is installed in a Python environment, as its dist-info and conda-meta describe it."""

import re
from collections.abc import Iterable
from stat import S_ISREG

import msgspec

from volta_doctor.probe import Probe

_HEADER_BYTES = 1 << 20
_CHUNK_BYTES = 8192
_HEADER_END = re.compile(rb"\r?\n\r?\n")


class Distribution(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An installed distribution.

    `sha256` is that of the archive it came from, which pip records only for direct URLs. `tags`
    are those of a wheel that holds compiled code. `source` is the directory of an editable one.
    """

    name: str
    version: str
    requires: list[str] = []
    sha256: str | None = None
    tags: list[str] = []
    source: str | None = None


class CondaPackage(msgspec.Struct, frozen=True, kw_only=True):
    """A package of a conda environment; `build` may name a CUDA version."""

    name: str
    version: str
    build: str


def parse_metadata(text: str, direct_url: str | None = None, wheel: str = "") -> Distribution:
    """Return what the header of a METADATA file and the files beside it say."""
    header = re.split(r"\r?\n\r?\n", text, maxsplit=1)[0]
    fields = [line.split(": ", 1) for line in header.splitlines() if ": " in line]
    first = {key.lower(): value.strip() for key, value in reversed(fields)}
    sha256 = re.search(r'"sha256(?:"\s*:\s*"|=)([0-9a-f]{64})', direct_url or "")
    editable = re.search(r'"editable"\s*:\s*true', direct_url or "")
    source = re.search(r'"url"\s*:\s*"file://([^"]+)"', direct_url or "") if editable else None
    tags = re.findall(r"^Tag: *(\S+)", wheel, re.MULTILINE)
    return Distribution(
        name=first.get("name", ""),
        version=first.get("version", ""),
        requires=[value for key, value in fields if key.lower() == "requires-dist"],
        sha256=sha256[1] if sha256 else None,
        tags=[] if all(tag.endswith("-none-any") for tag in tags) else tags,
        source=source[1] if source else None,
    )


def read_distributions(probe: Probe, sites: Iterable[str]) -> list[Distribution]:
    """Return what is installed in the given directories; of a name found twice the first counts.

    An egg-info is what setuptools and distributions' packages leave; it may be a file.
    """
    found: dict[str, Distribution] = {}
    for site in sites:
        for info in probe.names(site):
            directory = f"{site}/{info}"
            if info.endswith(".dist-info"):
                distribution = _read_dist_info(probe, directory)
            elif info.endswith(".egg-info"):
                distribution = _read_egg_info(probe, directory)
            else:
                continue
            if distribution and distribution.name:
                key = re.sub(r"[-_.]+", "-", distribution.name).lower()
                found.setdefault(key, distribution)
    return list(found.values())


def read_conda(probe: Probe, prefix: str) -> list[CondaPackage]:
    """Return the packages of a conda environment, by the names of their records."""
    records = (name.removesuffix(".json") for name in probe.names(f"{prefix}/conda-meta"))
    parts = (record.rsplit("-", 2) for record in records)
    return [CondaPackage(name=p[0], version=p[1], build=p[2]) for p in parts if len(p) == 3]


def _read_dist_info(probe: Probe, directory: str) -> Distribution | None:
    header = _header(probe, f"{directory}/METADATA")
    if header is None:
        return None
    direct_url = probe.text_or_none(f"{directory}/direct_url.json")
    return parse_metadata(header, direct_url, probe.text_or_none(f"{directory}/WHEEL") or "")


def _read_egg_info(probe: Probe, path: str) -> Distribution | None:
    inside = f"{path}/PKG-INFO"
    header = _header(probe, inside if probe.exists(inside) else path)
    return parse_metadata(header) if header else None


def _header(probe: Probe, path: str) -> str | None:
    """Return a file as far as its first empty line, None where there is no such file.

    What follows may be a README of hundreds of kilobytes.
    """
    status = probe.stat(path)
    if status is None or not S_ISREG(status.st_mode):
        return None
    data = b""
    with probe.open(path) as file:
        while len(data) < _HEADER_BYTES and (chunk := file.read(_CHUNK_BYTES)):
            data += chunk
            if _HEADER_END.search(data, max(0, len(data) - len(chunk) - 3)):
                break
    return data.decode(errors="replace")
