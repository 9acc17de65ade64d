"""Is the installed release what its lock says, and does it serve?"""

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from volta_doctor.catalog import Row
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts
from volta_doctor.facts.release import FROM_VENV, LockedPackage, ReleaseFacts
from volta_doctor.facts.service import HTTP_LIMIT_S, ServiceFacts
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import few

# The grace for a unit that sets no TimeoutStartSec: loading a large model takes minutes.
_GRACE_S = 600.0


def same_version(one: str, other: str) -> bool:
    """Compare two versions as PEP 440 does (1.0 is 1.0.0), or as text where one is no version."""
    try:
        return Version(one) == Version(other)
    except InvalidVersion:
        return one == other


def differences(release: ReleaseFacts) -> list[str]:
    """Return how the venv falls short of the lock."""
    installed = {package.name: package for package in release.installed}
    found = []
    for locked in release.locked:
        here = installed.get(canonicalize_name(locked.name))
        if here is None:
            found.append(f"{locked.name} {locked.version} is missing")
        elif not same_version(here.version, locked.version):
            found.append(f"{locked.name} is {here.version}, locked is {locked.version}")
        elif here.sha256 and locked.sha256 and here.sha256 not in locked.sha256:
            found.append(f"{locked.name} {here.version} came from another archive ({here.sha256})")
    return found


def _lock(locked: list[LockedPackage]) -> set[str]:
    return {canonicalize_name(package.name) for package in locked}


@check("release-matches-lock")
def release_matches_lock(facts: Facts, row: Row) -> Finding:
    """Nothing on a host comes from anywhere but the lock."""
    release = facts.release.need()
    lock_file, venv = f"{release.directory}/stack.lock.yaml", f"{release.directory}/venv"
    if release.lock_digest != release.manifest.digest:
        return row.fail(
            "The lock file is not the one that the release was made from.",
            Evidence(f"{release.directory}/release.json", release.manifest.digest),
            Evidence(lock_file, release.lock_digest),
        )
    if wrong := differences(release):
        told = few(wrong, by="; ")
        text = f"{len(wrong)} of {len(release.locked)} locked packages are wrong: {told}."
        return row.fail(text, *(Evidence(venv, line) for line in wrong))
    if release.conflicts:
        told = few(release.conflicts, by="; ")
        text = f"{len(release.conflicts)} requirements are not met: {told}."
        return row.fail(text, *(Evidence(venv, line) for line in release.conflicts))
    known = _lock(release.locked) | FROM_VENV
    added = [f"{p.name} {p.version}" for p in release.installed if p.name not in known]
    if added:
        return row.warn(
            f"Installed, but not in the lock: {few(added, by='; ')}.",
            *(Evidence(venv, line) for line in added),
        )
    return row.ok(
        f"All {len(release.locked)} packages are as locked.",
        Evidence(lock_file, release.lock_digest),
    )


@check("service-ready")
def service_ready(facts: Facts, row: Row) -> Finding:
    """Neither an active unit nor an answering port alone is a service."""
    service = facts.service.need()
    unit, health = service.unit_state, service.health
    answer = f"{health.status}" if health.status else f"{health.error}"
    seen = [
        Evidence(f"{service.manager} {service.unit}", unit.state),
        Evidence(f"GET {health.url}", f"{answer} ({health.seconds:g} s)"),
    ]
    name = service.unit
    if unit.phase is None:
        return row.unknown(
            f"The service manager could not be asked: {unit.state}.", *seen, subject=name
        )
    if unit.phase == "inactive":
        also = " Another program answers on its port." if health.status else ""
        return row.fail(f"The service is not active: {unit.state}.{also}", *seen, subject=name)
    grace = unit.start_timeout_s or _GRACE_S
    uptime = unit.uptime_s
    if health.status != 200:
        if uptime is None:
            text = f"/health does not answer 200 ({answer}), and since when it is up is not known."
            return row.unknown(text, *seen, subject=name)
        if uptime <= grace:
            text = f"Still starting: up for {uptime:.0f} s of its {grace:.0f} s of grace."
            return row.info(text, *seen, subject=name)
        text = f"/health does not answer 200 within {HTTP_LIMIT_S:g} s: {answer}."
        return row.fail(text, *seen, subject=name)
    if unit.phase == "starting":
        return row.info(f"Still starting ({unit.state}), though it answers.", *seen, subject=name)
    return _judge_models(row, service, seen)


def _judge_models(row: Row, service: ServiceFacts, seen: list[Evidence]) -> Finding:
    answer, models = service.models_answer, service.models
    said = "gives no list" if models is None else f"lists {', '.join(models) or 'nothing'}"
    seen.append(Evidence(f"GET {answer.url}", f"{answer.status or answer.error}: {said}"))
    if models is None or service.model not in models:
        text = f"It answers, but /v1/models {said} and so not {service.model}."
        return row.warn(text, *seen, subject=service.unit)
    text = f"Active, answers in {service.health.seconds:g} s and serves {service.model}."
    return row.ok(text, *seen, subject=service.unit)
