"""Real Debian hosts under systemd-nspawn, made once and booted from a clean overlay."""

import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

TOOLS = ("debootstrap", "systemd-nspawn", "ssh", "ssh-keygen", "unshare")
SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "systemd,systemd-sysv,dbus,python3,openssh-server"
SSH_OPTIONS = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=5")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    reason = "needs root" if os.getuid() else f"needs {', '.join(missing)}" if missing else ""
    for item in items:
        if "hosts" in item.path.parts:
            item.add_marker(pytest.mark.hosts)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Host:
    """A booted host: its ssh port, its key, and the environment that pip needs there."""

    port: int
    key: Path
    environment: dict[str, str]

    @property
    def ssh(self) -> list[str]:
        options = [f"-o{option}" for option in SSH_OPTIONS]
        return ["ssh", "-q", *options, f"-i{self.key}", f"-p{self.port}", "root@127.0.0.1"]

    def run(self, command: str, timeout: float = 60, check: bool = True, data: bytes | None = None):
        """Run a shell command on the host; the result's stdout holds stderr too."""
        exports = "".join(f"export {k}={shlex.quote(v)}; " for k, v in self.environment.items())
        result = subprocess.run(
            [*self.ssh, exports + command],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
        output = result.stdout.decode(errors="replace")
        assert not check or result.returncode == 0, f"{command}: exit {result.returncode}\n{output}"
        return subprocess.CompletedProcess(command, result.returncode, output)

    def wait(self, seconds: float = 60) -> None:
        """Wait until systemd has finished booting."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = self.run("systemctl is-system-running --wait", check=False).stdout.strip()
            if state == "running":
                return
            time.sleep(0.5)
        raise TimeoutError(f"host on port {self.port} did not boot in {seconds} s")


@pytest.fixture(scope="session")
def lab(repo: Path) -> Path:
    """A directory with a Debian root file system (70 s, once) and a key."""
    lab = repo / ".cache" / "lab"
    if not (lab / "rootfs/etc/debian_version").exists():
        partial = lab / "rootfs.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        options = ["--variant=minbase", f"--include={PACKAGES}"]
        command = ["debootstrap", *options, SUITE, partial, MIRROR]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        partial.rename(lab / "rootfs")
    if not (lab / "key").exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", lab / "key"]
        subprocess.run(command, check=True)
    return lab


@pytest.fixture(scope="session")
def free_port():
    """Return a function that gives a port nobody listens on."""

    def find() -> int:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            return probe.getsockname()[1]

    return find


@pytest.fixture(scope="session")
def host(lab: Path, repo: Path, free_port) -> Iterator[Host]:
    """One bare host that has nothing but Debian's base and an ssh server."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if "PIP_CERT" in environment:
        environment["PIP_CERT"] = "/etc/ssl/lab.crt"
    # A local wheel directory is shown to the host, as a site's mirror would be.
    binds = [path for path in environment.get("PIP_FIND_LINKS", "").split() if Path(path).is_dir()]
    stale = lab / "hosts" / "bare"
    subprocess.run(["rm", "-rf", "--one-file-system", stale], check=True)
    boot = subprocess.Popen(
        [repo / "tests/hosts/boot", lab, "bare", str(port), *binds], start_new_session=True
    )
    host = Host(port, lab / "key", environment)
    try:
        host.wait()
        yield host
    finally:
        host.run("poweroff", check=False)
        try:
            boot.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(boot.pid, signal.SIGKILL)
        shutil.rmtree(stale, ignore_errors=True)


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
