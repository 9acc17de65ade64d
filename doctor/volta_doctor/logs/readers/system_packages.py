"""Installed packages of NVIDIA's driver, as dpkg, apt and rpm list them."""

import re
from collections.abc import Iterator

from volta_doctor.facts.model import Facts
from volta_doctor.facts.packages import OF_INTEREST, Package, PackagesFacts
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Text

_DPKG = re.compile(r"^([ih])i\s+([a-z0-9][a-z0-9+.-]+)(?::\w+)?\s+(\S*\d\S*)")
_APT = re.compile(r"^([a-z0-9][a-z0-9+.-]+)/\S+\s+(\S+)\s+\w+\s+\[installed")
_RPM = re.compile(
    r"^((?:kmod-|lib)?nvidia[\w-]*?|cuda-drivers[\w-]*?)-((?:\d+:)?\d{3}\.[\d.]+-\S+)"
    r"\.(?:x86_64|noarch)$"
)


@reader("nvidia", "cuda-drivers", after=8)
def system_packages(text: Text) -> Iterator[Part]:
    """Yield the packages; a listing does not show that there are no others."""
    found: dict[str, Package] = {}
    seen: list[Seen] = []
    manager = "apt"
    for line in text.lines:
        body = line.body
        if match := _DPKG.match(body):
            package = Package(name=match[2], version=match[3], held=match[1] == "h")
        elif match := _APT.match(body):
            package = Package(name=match[1], version=match[2])
        elif match := _RPM.match(body):
            package, manager = Package(name=match[1], version=match[2]), "dnf"
        else:
            continue
        if OF_INTEREST.search(package.name):
            found.setdefault(package.name, package)
            words = f"{package.name} {package.version}"
            seen.append(Seen("packages", words, text.evidence(line)))
    if found:
        facts = PackagesFacts(
            manager=manager,
            installed=list(found.values()),
            candidates_problem="the text does not show what an upgrade would bring",
            pins=[],
            repositories=[],
        )
        yield Part(Facts(packages=section(facts)), ("transitional-driver-package",), seen)
