"""Real Debian hosts under systemd-nspawn: one that is bare, and such with fake V100s (lab.py)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lab import GPUS, TOOLS, Host, ansible_playbook, boot, driver_variables, free_port
from repository import Mirror, make_repository


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    reason = "needs root" if os.getuid() else f"needs {', '.join(missing)}" if missing else ""
    for item in items:
        if "hosts" in item.path.parts:
            item.add_marker(pytest.mark.hosts)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def lab(repo: Path) -> Path:
    """Where hosts and their root file systems are; the latter stay for the next run."""
    lab = Path(os.environ.get("VOLTA_LAB", repo / ".cache/lab"))
    lab.mkdir(parents=True, exist_ok=True)
    return lab.resolve()


@pytest.fixture(scope="session")
def pip() -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment that pip needs on a host, and the directories that it must see there."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if "PIP_CERT" in environment:
        environment["PIP_CERT"] = "/etc/ssl/lab.crt"
    # A local wheel directory is shown to the host, as a site's mirror would be.
    binds = [path for path in environment.get("PIP_FIND_LINKS", "").split() if Path(path).is_dir()]
    return environment, tuple(binds)


@pytest.fixture(scope="session")
def host(lab: Path, pip) -> Iterator[Host]:
    """One bare host that has nothing but Debian's base and an ssh server."""
    environment, binds = pip
    for make in booted(lab):
        yield make("bare", gpus="", bare=True, binds=binds, environment=environment)


@pytest.fixture(scope="session")
def checkout(host: Host, repo: Path) -> str:
    """The project's tracked files on the host, as a clone has them; returns the directory."""
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=repo,
        capture_output=True,
        check=True,
    ).stdout
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"],
        cwd=repo,
        input=files,
        capture_output=True,
        check=True,
    ).stdout
    host.run("mkdir -p /root/volta && tar -xf - -C /root/volta", data=archive)
    return "/root/volta"


@dataclass
class Repository:
    """What plays NVIDIA's package repository, served to the hosts."""

    mirror: Mirror
    fingerprint: str

    @property
    def variables(self) -> dict[str, str]:
        """The driver role's variables for it."""
        return driver_variables(self.mirror.url, self.fingerprint)


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    place = tmp_path_factory.mktemp("repository") / "nvidia"
    return Repository(Mirror(place).start(), make_repository(place))


@dataclass
class Outcome:
    """What ansible-playbook said: its exit code, its output, and each host's recap."""

    code: int
    output: str
    recap: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The output with its line breaks folded, to look for sentences in."""
        return " ".join(self.output.split())


@pytest.fixture(scope="session")
def play(repo: Path, tmp_path_factory: pytest.TempPathFactory):
    """Return a function that runs a playbook against hosts, as an administrator does."""
    scratch = tmp_path_factory.mktemp("play")

    def run(
        playbook: str,
        hosts: list[Host],
        *arguments: str,
        check: bool = True,
        timeout: float = 900,
        **variables: Any,
    ) -> Outcome:
        result = subprocess.run(
            ansible_playbook(scratch, playbook, hosts, *arguments, **variables),
            cwd=repo / "playbooks",
            env={**os.environ, "ANSIBLE_HOME": str(scratch / "ansible")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        recap = {}
        for line in result.stdout.rpartition("PLAY RECAP")[2].splitlines()[1:]:
            name, colon, counts = line.partition(":")
            if colon:
                pairs = (pair.split("=") for pair in counts.split())
                recap[name.strip()] = {key: int(value) for key, value in pairs}
        assert not check or result.returncode == 0, result.stdout
        return Outcome(result.returncode, result.stdout, recap)

    return run


def booted(lab: Path) -> Iterator[Any]:
    """Yield a function that boots a host with fake V100s; all go at the end."""
    made: list[Host] = []

    def make(name: str, gpus: str = GPUS, **options: Any) -> Host:
        host = boot(lab, name, free_port(), gpus=gpus, **options)
        made.append(host)
        host.wait(90)
        return host

    yield make
    for host in made:
        host.stop()


@pytest.fixture
def v100_host(lab: Path) -> Iterator[Any]:
    """What boots hosts for one test."""
    yield from booted(lab)


@pytest.fixture(scope="module")
def lab_host(lab: Path) -> Iterator[Any]:
    """What boots hosts for a file's tests."""
    yield from booted(lab)
