"""Where an interpreter keeps its packages: venv, virtualenv, uv, conda and the system's Python."""

import posixpath
import re
from typing import NamedTuple

from volta_doctor.probe import CannotLook, Probe


class Layout(NamedTuple):
    """One environment: its interpreter's version and tag (cp311), and where it imports from."""

    prefix: str
    kind: str
    python: str
    tag: str
    sites: list[str]


def parse_python_version(pyvenv_cfg: str) -> str | None:
    """Return the interpreter version of a pyvenv.cfg (venv and virtualenv name it differently)."""
    match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", pyvenv_cfg, re.MULTILINE)
    return match[1] if match else None


def container_root(path: str) -> str:
    """Return /proc/PID/root where a path begins with it: a server in a container; else nothing."""
    match = re.match(r"/proc/\d+/root(?=/)", path)
    return match[0] if match else ""


def find_layout(
    probe: Probe, prefix: str, interpreter: str | None = None, user_site: str | None = None
) -> Layout:
    """Return the layout of an environment. Raises CannotLook naming what is missing in it.

    `interpreter` is a path, whose name tells a system's Python from its neighbours.
    """
    config = probe.text_or_none(f"{prefix}/pyvenv.cfg")
    if config is not None:
        python = parse_python_version(config)
        if python is None:
            raise CannotLook(f"{prefix}/pyvenv.cfg names no Python version")
        kind, sites = "venv", _own_sites(probe, prefix, python)
        if re.search(r"^include-system-site-packages\s*=\s*true", config, re.MULTILINE):
            home = re.search(r"^home\s*=\s*(\S+)", config, re.MULTILINE)
            base = container_root(prefix) + posixpath.dirname(home[1]) if home else "/usr"
            sites += _shared_sites(probe, base, python)
        user_site = None
    elif probe.exists(f"{prefix}/conda-meta"):
        records = " ".join(probe.names(f"{prefix}/conda-meta"))
        record = re.search(r"(?:^| )python-(\d+\.\d+\.\d+)-\S+\.json", records)
        if record is None:
            raise CannotLook(f"{prefix}/conda-meta names no Python")
        kind, python = "conda", record[1]
        sites = _own_sites(probe, prefix, python)
    else:
        kind, python = "system", _system_version(probe, prefix, interpreter)
        sites = _shared_sites(probe, prefix, python)
    if not sites:
        raise CannotLook(f"{prefix}/lib holds no packages of Python {python}")
    threads = "t" if any(f"python{_minor(python)}t/" in site for site in sites) else ""
    tag = f"cp{_minor(python).replace('.', '')}{threads}"
    if user_site and probe.exists(f"{user_site}/lib/python{_minor(python)}/site-packages"):
        sites = [f"{user_site}/lib/python{_minor(python)}/site-packages", *sites]
    return Layout(prefix, kind, python, tag, sites)


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])


def _own_sites(probe: Probe, prefix: str, python: str) -> list[str]:
    names = (f"python{_minor(python)}", f"python{_minor(python)}t")
    candidates = [f"{prefix}/lib/{name}/site-packages" for name in names]
    return [site for site in candidates if probe.exists(site)]


def _shared_sites(probe: Probe, prefix: str, python: str) -> list[str]:
    """Return where a system's Python looks: Debian's dist-packages, others' site-packages."""
    minor = _minor(python)
    local = (
        [f"{posixpath.dirname(prefix)}/usr/local"] if posixpath.basename(prefix) == "usr" else []
    )
    candidates = [
        f"{place}/{lib}/{name}"
        for place in [*local, prefix]
        for lib in ("lib", "lib64")
        for name in (
            f"python{minor}/dist-packages",
            f"python{minor}/site-packages",
            "python3/dist-packages",
        )
    ]
    return [site for site in candidates if probe.exists(site)]


def _system_version(probe: Probe, prefix: str, interpreter: str | None) -> str:
    programs = [interpreter] if interpreter else []
    programs += [f"{prefix}/bin/python3", f"{prefix}/bin/python"]
    for program in programs:
        match = re.search(r"python(\d+\.\d+)$", probe.resolve(program))
        if match:
            return match[1]
    names = [name for name in probe.names(f"{prefix}/lib") if re.match(r"python\d\.\d+$", name)]
    if len(names) != 1:
        raise CannotLook(f"{prefix}/lib holds {len(names)} python directories, not one")
    return names[0].removeprefix("python")
