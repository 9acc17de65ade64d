"""How Debian and Ubuntu fill the `packages` section."""

import re
from collections.abc import Iterator

from msgspec import structs

from volta_doctor.facts import pci
from volta_doctor.facts.modules import PROC_VERSION
from volta_doctor.facts.packages import (
    OF_INTEREST,
    AutoUpgrades,
    Package,
    PackagesFacts,
    Pin,
    Repository,
)
from volta_doctor.probe import CannotLook, Probe

STATUS = "/var/lib/dpkg/status"
_COMMAND_S = 5.0
_SEQUOIA_POLICIES = (  # the administrator's, then apt's own
    "/etc/crypto-policies/back-ends/apt-sequoia.config",
    "/usr/share/apt/default-sequoia.config",
)
# apt ignores files of other names (apt_preferences(5)): nvidia.bak, nvidia.disabled
_PREFERENCES = re.compile(r"[\w-]+|[\w.-]+\.pref", re.ASCII)
_CUDA_REPOSITORY = re.compile(r"developer\.download\.nvidia\.(com|cn)/compute/cuda/repos")


def stanzas(text: str) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a deb822 text; continuation lines keep their line breaks."""
    for paragraph in re.split(r"\n(?:[ \t]*\n)+", text):
        fields: dict[str, str] = {}
        key = ""
        for line in paragraph.splitlines():
            if line.startswith("#"):
                continue
            if line[:1] in (" ", "\t"):
                if key:
                    fields[key] += "\n" + line.strip()
            elif ":" in line:
                key, value = line.split(":", 1)
                key = key.strip().lower()
                fields[key] = value.strip()
        if fields:
            yield fields


def clauses(depends: str) -> list[str]:
    """Split a Depends field into its clauses."""
    return [clause.strip() for clause in depends.split(",") if clause.strip()]


def parse_status(text: str) -> list[Package]:
    """Return the installed NVIDIA packages of dpkg's status file; a hold is a `hold` state."""
    # The file has megabytes: look at the name before parsing a paragraph.
    wanted = [
        paragraph
        for paragraph in text.split("\n\n")
        if (name := re.match(r"\s*Package: (\S+)", paragraph)) and OF_INTEREST.search(name[1])
    ]
    found = []
    for fields in stanzas("\n\n".join(wanted)):
        want, _, state = fields.get("status", "").partition(" ")
        if state not in ("ok installed", "ok triggers-awaited", "ok triggers-pending"):
            continue
        depends = clauses(fields.get("pre-depends", "")) + clauses(fields.get("depends", ""))
        found.append(
            Package(
                name=fields["package"],
                version=fields.get("version", ""),
                depends=depends,
                held=want == "hold",
            )
        )
    return found


def parse_policy(text: str) -> dict[str, str]:
    """Return the candidate version of each package in `apt-cache policy` output."""
    pattern = re.compile(r"^(\S+?)(?::\S+)?:\n(?:  .*\n)*?  Candidate: (\S+)", re.MULTILINE)
    return {name: version for name, version in pattern.findall(text) if version != "(none)"}


def parse_show(text: str) -> dict[tuple[str, str], list[str]]:
    """Return the dependency clauses by name and version of `apt-cache show` output."""
    return {
        (fields.get("package", ""), fields.get("version", "")): (
            clauses(fields.get("pre-depends", "")) + clauses(fields.get("depends", ""))
        )
        for fields in stanzas(text)
    }


def parse_preferences(text: str, file: str) -> list[Pin]:
    """Return the pins of one preferences file."""
    pins = []
    for fields in stanzas(text):
        priority = fields.get("pin-priority", "")
        if {"package", "pin"} <= fields.keys() and re.fullmatch(r"-?\d+", priority):
            pins.append(
                Pin(
                    packages=" ".join(fields["package"].split()),
                    pin=fields["pin"],
                    priority=int(priority),
                    file=file,
                )
            )
    return pins


def parse_config(text: str) -> dict[str, list[str]]:
    """Return the values by (lower-case) name of `apt-config dump` output."""
    values: dict[str, list[str]] = {}
    for name, value in re.findall(r'^(\S+) "(.*)";$', text, re.MULTILINE):
        values.setdefault(name.removesuffix("::").lower(), []).append(value)
    return values


def parse_sources(text: str, file: str) -> list[tuple[Repository, str]]:
    """Return the CUDA repositories of a sources file, each with its Signed-By (path or key)."""
    found = []
    if file.endswith(".sources"):
        for fields in stanzas(text):
            for uri in fields.get("uris", "").split():
                if _CUDA_REPOSITORY.search(uri) and fields.get("enabled", "yes") != "no":
                    line = next((n for n, s in enumerate(text.splitlines(), 1) if uri in s), 1)
                    trusted = fields.get("trusted", "no") in ("yes", "true", "1")
                    signed_by = fields.get("signed-by", "").replace("\n.\n", "\n\n").strip()
                    repository = Repository(uri=uri, file=file, line=line, trusted=trusted)
                    found.append((repository, signed_by))
        return found
    for number, entry in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*deb(?:-src)?\s+(?:\[(.*?)\]\s*)?(\S+)", entry)
        if match and _CUDA_REPOSITORY.search(match[2]):
            options = dict(o.split("=", 1) for o in (match[1] or "").split() if "=" in o)
            trusted = options.get("trusted", "no") in ("yes", "true", "1")
            repository = Repository(uri=match[2], file=file, line=number, trusted=trusted)
            found.append((repository, options.get("signed-by", "")))
    return found


def parse_sha1_date(policy: str) -> str | None:
    """Return the date from which a Sequoia policy rejects SHA-1 in signatures over keys."""
    match = re.search(
        r"^\s*sha1\.second_preimage_resistance\s*=\s*\"?(\d{4}-\d\d-\d\d)", policy, re.MULTILINE
    )
    return match[1] if match else None


def read_keys(probe: Probe, repository: Repository, signed_by: str) -> Repository:
    """Add what the repository's keyring says to it."""
    from volta_doctor.facts.packages.openpgp import sha1_bound_keys

    # Without Signed-By apt accepts any of its own keys; NVIDIA's are told by their user id.
    own = [f"/etc/apt/trusted.gpg.d/{n}" for n in probe.names("/etc/apt/trusted.gpg.d")]
    inline = signed_by.startswith("-----BEGIN")
    files = [] if inline else signed_by.replace(",", " ").split() or ["/etc/apt/trusted.gpg", *own]
    bound: dict[str, bool] = {}
    problem = None
    try:
        rings = [signed_by.encode()] if inline else []
        rings += [probe.data(f) for f in files if signed_by or probe.exists(f)]
        for ring in rings:
            bound |= sha1_bound_keys(ring)
    except CannotLook as reason:
        problem = str(reason)
    except (ValueError, IndexError) as error:
        problem = f"{', '.join(files) or 'inline key'}: {error}"
    if not signed_by:
        bound = {key: sha1 for key, sha1 in bound.items() if "nvidia" in key.lower()}
    if not bound and problem is None:
        problem = "no Signed-By, and none of apt's own keys is NVIDIA's"
    return structs.replace(
        repository,
        keyring="inline" if inline else signed_by or None,
        keys=list(bound),
        sha1_keys=[key for key, sha1 in bound.items() if sha1],
        key_problem=problem,
    )


def add_candidates(probe: Probe, packages: list[Package]) -> tuple[list[Package], str | None]:
    """Add to each driver package what the next upgrade would install in its place.

    apt-cache is the one slow question here (it may rebuild its cache), so it is asked only where
    an upgrade could strand a card.
    """
    names = [package.name for package in packages if package.is_driver]
    if not names:
        return packages, None
    if not may_have_card(probe):
        return packages, "no NVIDIA card on this host, so apt-cache was not asked for candidates"
    policy = probe.run("apt-cache", "policy", *names, limit=_COMMAND_S)
    candidates = parse_policy(policy.stdout)
    if policy.exit_code != 0 or not candidates:
        return packages, f"apt-cache policy: {policy.complaint}"
    newer = [
        f"{p.name}={c}" for p in packages if (c := candidates.get(p.name, p.version)) != p.version
    ]
    depends: dict[tuple[str, str], list[str]] = {}
    if newer:
        show = probe.run("apt-cache", "show", *newer, limit=_COMMAND_S)
        if show.exit_code != 0:
            return packages, f"apt-cache show: {show.complaint}"
        depends = parse_show(show.stdout)
    return [
        structs.replace(
            package,
            candidate=(candidate := candidates.get(package.name)),
            candidate_depends=depends.get((package.name, candidate or ""), []),
        )
        for package in packages
    ], None


def may_have_card(probe: Probe) -> bool:
    """Say whether there is an NVIDIA card, or was one when its module was loaded."""
    try:
        return bool(probe.once(pci.collect).gpus) or probe.exists(PROC_VERSION)
    except CannotLook:
        return True


def read_auto_upgrades(probe: Probe, dpkg_status: str) -> AutoUpgrades | None:
    """Return unattended-upgrades' settings, None where it is not installed."""
    if not re.search(r"^Package: unattended-upgrades\nStatus: \S+ ok installed", dpkg_status, re.M):
        return None
    dump = probe.run("apt-config", "dump", limit=_COMMAND_S)
    if dump.exit_code != 0:
        raise CannotLook(f"apt-config dump: {dump.complaint}")
    values = parse_config(dump.stdout)

    def on(name: str, default: str) -> bool:
        return values.get(name, [default])[-1] not in ("0", "", "false")

    return AutoUpgrades(
        tool="unattended-upgrades",
        enabled=on("apt::periodic::enable", "1") and on("apt::periodic::unattended-upgrade", "0"),
        source="apt-config dump",
        blacklist=[v for v in values.get("unattended-upgrade::package-blacklist", []) if v],
    )


def collect(probe: Probe) -> PackagesFacts:
    """Read dpkg's and apt's files; ask apt-cache only about an installed driver."""
    status = probe.text(STATUS)
    installed, candidates_problem = add_candidates(probe, parse_status(status))
    preferences = [n for n in probe.names("/etc/apt/preferences.d") if _PREFERENCES.fullmatch(n)]
    pins = []
    for name in ["preferences", *(f"preferences.d/{n}" for n in preferences)]:
        file = f"/etc/apt/{name}"
        pins += parse_preferences(probe.text_or_none(file) or "", file)
    sources = [f"sources.list.d/{n}" for n in probe.names("/etc/apt/sources.list.d")]
    repositories = []
    for name in ["sources.list", *(n for n in sources if n.endswith((".list", ".sources")))]:
        file = f"/etc/apt/{name}"
        for repository, signed_by in parse_sources(probe.text_or_none(file) or "", file):
            repositories.append(read_keys(probe, repository, signed_by))
    policy = next(filter(None, (probe.text_or_none(p) for p in _SEQUOIA_POLICIES)), "")
    return PackagesFacts(
        manager="apt",
        installed=installed,
        candidates_problem=candidates_problem,
        pins=pins,
        auto_upgrades=read_auto_upgrades(probe, status),
        repositories=repositories,
        sha1_rejected_from=parse_sha1_date(policy) if probe.which("sqv") else None,
    )
