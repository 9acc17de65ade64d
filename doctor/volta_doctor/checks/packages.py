"""Can an upgrade take the host off the last branch that drives Volta?"""

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from fnmatch import fnmatchcase

from volta_doctor.catalog import Row, compat
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.packages import (
    Package,
    PackagesFacts,
    Pin,
    Repository,
    branch_in_name,
    branch_of_version,
)
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import few, several

# apt installs the newest version among those of the highest priority; a release has 500.
_USUAL_PRIORITY = 500


def covers(pin: Pin, package: str) -> bool:
    """Say whether a pin speaks of a package: names, globs and /regular expressions/."""
    for pattern in pin.packages.split():
        if pattern.startswith("/"):
            if re.search(pattern.strip("/"), package):
                return True
        elif fnmatchcase(package, pattern):
            return True
    return False


def locks_branch(pin: Pin, branch: int) -> bool:
    """Say whether a pin prefers that branch's versions over all others."""
    match = re.match(r"version(?:lock)?\s+(.+)", pin.pin)
    wanted = re.sub(r"^/?\^?(\d+:|\*:)?", "", match[1].strip()) if match else ""
    return wanted.startswith(f"{branch}") and pin.priority > _USUAL_PRIORITY


def unpinned(packages: PackagesFacts, branch: int) -> list[Package]:
    """Return the driver packages that no pin ties to the branch.

    Packages with the branch in their name alone (linux-modules-nvidia-580-...) need no pin.
    """
    if any(re.match(rf"nvidia-driver-pinning-{branch}\b", p.name) for p in packages.installed):
        return []
    pins = [pin for pin in packages.pins if locks_branch(pin, branch)]
    return [
        package
        for package in packages.drivers
        if package.branch_in_version and not any(covers(pin, package.name) for pin in pins)
    ]


def listed(packages: Iterable[Package]) -> str:
    """Name a few packages and count the rest."""
    return few(list(dict.fromkeys(package.name for package in packages)))


def of_packages(packages: Iterable[Package]) -> list[Evidence]:
    """Show a few packages with their versions."""
    return [Evidence("packages", f"{p.name} {p.version}") for p in packages][:3]


@check("driver-pin")
def driver_pin(facts: Facts, row: Row) -> Finding:
    """A pin decides what an upgrade picks; a hold only asks it to stay away."""
    packages, branch = facts.packages.need(), compat().driver.last_branch
    if not packages.drivers:
        return row.skip("No driver package is installed, so no upgrade can change the driver.")
    loose = unpinned(packages, branch)
    if not loose:
        seen = [
            Evidence(p.file, f"{p.packages}: {p.pin}")
            for p in packages.pins
            if locks_branch(p, branch)
        ]
        return row.ok(f"The driver packages are pinned to {branch}.", *seen)
    free = [package for package in loose if not package.held]
    if free:
        text = f"Neither pinned to {branch} nor held: {listed(free)}."
        return row.warn(text, *of_packages(free))
    return row.info(f"Held, but not pinned to {branch}: {listed(loose)}.", *of_packages(loose))


def dependency_branches(clauses: list[str], operators: str = "=") -> set[int]:
    """Return the driver branches that dependency clauses name, in names or versions.

    `operators` are those (a regular expression) whose version counts. That a package asks for
    some old branch or newer (>=) does not tie it to that branch.
    """
    found = set()
    for clause in clauses:
        for option in clause.split("|"):
            name, _, constraint = option.strip().partition(" ")
            if "nvidia" not in name and not name.startswith(("cuda-drivers", "libcuda1")):
                continue
            version = re.search(rf"\((?:{operators})\s*(\S+?)\)", constraint)
            for branch in (
                branch_in_name(name),
                branch_of_version(version[1]) if version else None,
            ):
                if branch:
                    found.add(branch)
    return found


@check("transitional-driver-package")
def transitional_driver_package(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """Look at what the next upgrade would bring, then at what the last one has brought."""
    packages, last = facts.packages.need(), compat().driver.last_branch
    drivers = packages.drivers
    if not drivers:
        return row.skip("No driver package is installed.")
    findings = []
    for package in drivers:
        ahead = dependency_branches(package.candidate_depends, "=|>=|>>")
        if package.candidate and (branch := branch_of_version(package.candidate)):
            ahead.add(branch)
        own = {b for b in (package.branch_in_name, package.branch_in_version) if b}
        now = own | dependency_branches(package.depends)
        seen = Evidence(
            "packages", f"{package.name} {package.version}, candidate {package.candidate}"
        )
        if package.branch_in_version and package.branch_in_version > last:
            text = f"It is of branch {package.branch_in_version}, which no longer drives Volta."
            findings.append(row.fail(text, seen, subject=package.name))
        elif ahead and max(ahead) > last:
            text = f"Its next upgrade brings branch {max(ahead)}."
            findings.append(row.fail(text, seen, subject=package.name))
        elif len(now) > 1:
            text = f"Its name, version and dependencies are of branches {_join(now)}."
            findings.append(row.warn(text, seen, subject=package.name))
    if findings:
        return findings
    if packages.candidates_problem and unpinned(packages, last):
        return row.unknown(packages.candidates_problem)
    return row.ok(
        f"{several(len(drivers), 'driver package')} on one branch.", *of_packages(drivers)
    )


def _join(branches: set[int]) -> str:
    return " and ".join(str(branch) for branch in sorted(branches))


@check("unattended-upgrades-nvidia")
def unattended_upgrades_nvidia(facts: Facts, row: Row) -> Finding:
    """An upgrade at night replaces the library under a running module."""
    packages, branch = facts.packages.need(), compat().driver.last_branch
    auto = packages.auto_upgrades
    if auto is None:
        return row.ok("No service upgrades packages by itself.")
    if not packages.drivers:
        return row.skip("No driver package is installed.")
    seen = Evidence(
        auto.source, f"{auto.tool}, leaves alone: {', '.join(auto.blacklist) or 'nothing'}"
    )
    if not auto.enabled:
        return row.ok(f"{auto.tool} is not enabled.", seen)
    loose = unpinned(packages, branch)
    if auto.tool == "dnf-automatic":
        exposed = loose
    else:
        exposed = [
            p for p in packages.drivers if not any(re.match(b, p.name) for b in auto.blacklist)
        ]
    if exposed:
        return row.warn(f"{auto.tool} may upgrade {listed(exposed)}.", seen)
    if loose:
        return row.info(f"Blacklisted, but not pinned to {branch}: {listed(loose)}.", seen)
    return row.ok(f"{auto.tool} leaves the NVIDIA packages alone.", seen)


@check("repo-key-sha1")
def repo_key_sha1(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """A rejected key stops every apt update; [trusted=yes] gives up all proof instead."""
    packages = facts.packages.need()
    if packages.manager != "apt":
        return row.skip(f"This host has {packages.manager}, not apt.")
    if not packages.repositories:
        return row.ok("No CUDA repository is configured.")
    today = datetime.fromtimestamp(facts.host.need().time, timezone.utc).date().isoformat()
    since = packages.sha1_rejected_from
    rejects = since is not None and since <= today
    return [_judge_key(row, repository, since, rejects) for repository in packages.repositories]


def _judge_key(row: Row, repository: Repository, since: str | None, rejects: bool) -> Finding:
    seen = [Evidence(repository.file, repository.uri, repository.line)]
    where = repository.uri
    if repository.trusted:
        return row.fail(
            "The source is marked trusted=yes: nothing is verified.", *seen, subject=where
        )
    if not repository.keys:
        text = f"The signing key cannot be judged: {repository.key_problem}."
        return row.unknown(text, *seen, subject=where)
    seen += [
        Evidence(repository.keyring or "/etc/apt/trusted.gpg.d", key) for key in repository.keys
    ]
    if len(repository.sha1_keys) < len(repository.keys):
        return row.ok("Its keyring holds a key that is not bound by SHA-1.", *seen, subject=where)
    if rejects:
        text = f"apt has rejected its key since {since}: it is bound by SHA-1."
        return row.fail(text, *seen, subject=where)
    when = f"from {since} on" if since else "in its later versions"
    text = f"Its key is bound by SHA-1, which apt rejects {when}."
    return row.warn(text, *seen, subject=where)
