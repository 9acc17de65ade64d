"""Throw-away Debian hosts under systemd-nspawn, bare or with fake V100s, for tests and by hand.

python tests/hosts/lab.py up NAME --port 2222           boots one and stays until it powers off
python tests/hosts/lab.py repository --port 8081        serves what plays NVIDIA's repository
python tests/hosts/lab.py inventory NAME:2222 …         an inventory for ansible-playbook

Real are: Debian, its systemd, apt, dkms, sshd, reboots, cgroups and device permissions. Simulated
are the cards (tests/fakegpu/host/volta-fake shows them in /proc, /sys and /dev), NVML and
nvidia-smi (they answer from a state file), the kernel's loading of modules, and NVIDIA's repository
(repository.py). It needs root and TOOLS.
"""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

HERE = Path(__file__).parent
FAKES = HERE.parent / "fakegpu"
sys.path[:0] = [str(FAKES), str(HERE)]

from layers import add_cards, alone, base, prepared  # noqa: E402
from repository import Mirror, make_repository  # noqa: E402

TOOLS = (
    "debootstrap",
    "systemd-nspawn",
    "ssh",
    "ssh-keygen",
    "unshare",
    "gpg",
    "dpkg-scanpackages",
)
SSH_OPTIONS = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "ConnectTimeout=5")
GPUS = "v100-sxm2-16gb-x2"
_SECURE_BOOT = "firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


@dataclass
class Host:
    """A booted host: its ssh port, its key, and the environment that commands get there."""

    name: str
    port: int
    lab: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen | None = None

    @property
    def key(self) -> Path:
        return self.lab / "key"

    @property
    def files(self) -> Path:
        """What the host has written over its base; a file put here before boot is on it."""
        return self.lab / "hosts" / self.name / "upper"

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
            if state in ("running", "degraded"):
                return
            time.sleep(0.5)
        raise TimeoutError(f"host {self.name} on port {self.port} did not boot in {seconds} s")

    def stop(self) -> None:
        """Power it off and forget what it wrote."""
        self.run("poweroff", check=False)
        if self.process:
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        forget(self.lab, self.name)

    @property
    def variables(self) -> dict[str, str | int]:
        """How Ansible reaches it."""
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": "root",
            "ansible_remote_tmp": "/tmp/ansible",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": " ".join(f"-o {option}" for option in SSH_OPTIONS),
        }


def forget(lab: Path, name: str) -> None:
    command = ["rm", "-rf", "--one-file-system", lab / "hosts" / name]
    subprocess.run(command, check=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def boot(
    lab: Path,
    name: str,
    port: int,
    *,
    gpus: str = "",
    suite: str = "bookworm",
    bare: bool = False,
    binds: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> Host:
    """Boot a host; a bare one has Debian's base alone, without what PREPARED spares the roles."""
    forget(lab, name)
    with alone(lab):
        root = base(lab, suite)
        layer = prepared(lab, suite) if gpus or not bare else root
    lower = str(root) if bare else f"{layer}/upper:{root}"
    host = Host(name, port, lab, environment or {})
    host.files.mkdir(parents=True)
    if gpus:
        over = root if bare else layer / "upper"
        add_cards(over, host.files, gpus, (layer / "kernel").read_text())
    command = [HERE / "boot", lab, name, str(port), lower, *binds]
    host.process = subprocess.Popen(command, start_new_session=True)
    return host


def inventory_of(hosts: list[Host]) -> str:
    """An inventory of these hosts, as Ansible reads it."""
    entries = {host.name: host.variables for host in hosts}
    return json.dumps({"volta": {"hosts": entries}}, indent=1)


def ansible_playbook(
    scratch: Path, playbook: str, hosts: list[Host], *arguments: str, **variables: Any
) -> list[str | Path]:
    """The command that runs a playbook against hosts; their inventory is written to `scratch`."""
    inventory = scratch / f"{'-'.join(host.name for host in hosts)}.json"
    inventory.write_text(inventory_of(hosts))
    command = [Path(sys.executable).with_name("ansible-playbook"), playbook, "-i", inventory]
    return [*command, "-e", json.dumps(variables), *arguments]


_AT = "cd /var/lib/fakegpu;"
FAULTS = {
    "nouveau": f"{_AT} touch nouveau",
    "busy": f"{_AT} touch busy",
    "stays-down": f"{_AT} touch stays-down",
    "secure-boot": f"{_AT} mkdir -p firmware/efi/efivars; printf '\\6\\0\\0\\0\\1' >{_SECURE_BOOT}",
    "t4": f"{_AT} for card in pci/*; do echo 0x1eb8 >$card/device; done",
    # Its configuration space reads as ones, and NVML does not open it.
    "lost": f"{_AT} head -c 64 /dev/zero | tr '\\0' '\\377' >$(ls -d pci/* | head -1)/config;"
    " echo 'gpus.0.handle_error!15' >>state",
    "gone": f"{_AT} rm -r $(ls -d pci/* | head -1)",
    "runfile": "echo '#!/bin/sh' >/usr/bin/nvidia-uninstall; chmod +x /usr/bin/nvidia-uninstall;"
    " echo >/var/log/nvidia-installer.log",
    "ecc-off": f"{_AT} sed -i 's/^gpus.0.ecc.\\(current\\|pending\\)=1/gpus.0.ecc.\\1=0/' state",
}


@click.group()
@click.option(
    "--lab",
    default=".cache/lab",
    type=click.Path(path_type=Path),
    help="Where hosts and caches are.",
)
@click.pass_context
def main(context: click.Context, lab: Path) -> None:
    """Throw-away hosts with fake V100s."""
    lab.mkdir(parents=True, exist_ok=True)
    context.obj = lab.resolve()


@main.command()
@click.argument("name")
@click.option("--port", required=True, type=int)
@click.option(
    "--gpus", default=GPUS, show_default=True, help="A name in tests/data/fakegpu; empty for none."
)
@click.option("--suite", default="bookworm", show_default=True)
@click.option("--bare", is_flag=True, help="Debian's base alone.")
@click.option("--bind", multiple=True, help="A directory shown inside under its own name.")
@click.pass_obj
def up(
    lab: Path, name: str, port: int, gpus: str, suite: str, bare: bool, bind: tuple[str, ...]
) -> None:
    """Boot a host and stay until it powers off."""
    host = boot(lab, name, port, gpus=gpus, suite=suite, bare=bare, binds=bind)
    host.wait(120)
    click.echo(f"{name} is up: {shlex.join(map(str, host.ssh))}")
    assert host.process
    host.process.wait()
    forget(lab, name)


@main.command()
@click.argument("name_and_port")
@click.argument("faults", nargs=-1, type=click.Choice(sorted(FAULTS)))
@click.pass_obj
def fault(lab: Path, name_and_port: str, faults: tuple[str, ...]) -> None:
    """Make something wrong on a host; what only shows at a boot needs one."""
    name, port = name_and_port.split(":")
    for one in faults:
        Host(name, int(port), lab).run(FAULTS[one])


@main.command()
@click.option("--port", required=True, type=int)
@click.pass_obj
def repository(lab: Path, port: int) -> None:
    """Build and serve what plays NVIDIA's repository; print the driver role's variables for it."""
    place = lab / "repository"
    shutil.rmtree(place, ignore_errors=True)
    fingerprint = make_repository(place)
    mirror = Mirror(place, port)
    click.echo(json.dumps(driver_variables(mirror.url, fingerprint)))
    mirror.serve_forever()


def driver_variables(url: str, fingerprint: str, release: str = "debian12") -> dict[str, str]:
    """The driver role's variables for the repository at `url`."""
    return {
        "driver_source": "mirror",
        "driver_mirror_url": f"{url}/{release}/x86_64/",
        "driver_mirror_key_url": f"{url}/key.asc",
        "driver_mirror_fingerprint": fingerprint,
    }


@main.command()
@click.argument("hosts", nargs=-1, required=True)
@click.pass_obj
def inventory(lab: Path, hosts: tuple[str, ...]) -> None:
    """Print an inventory of NAME:PORT…"""
    named = (one.split(":") for one in hosts)
    click.echo(inventory_of([Host(name, int(port), lab) for name, port in named]))


if __name__ == "__main__":
    main()
