"""What hosts are overlays of: Debian's base, a layer with what roles would fetch, fake cards."""

import contextlib
import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from fakehost import make_tree
from snapshots import flatten, load

FAKES = Path(__file__).parents[1] / "fakegpu"
MIRROR = "http://deb.debian.org/debian"
BASE = "systemd,systemd-sysv,dbus,python3,openssh-server"
# What the roles would fetch from Debian on every host: once for all that start with it.
PREPARED = "dkms linux-headers-amd64 python3-apt python3-venv python3-dev g++ cmake"


@contextlib.contextmanager
def alone(lab: Path) -> Iterator[None]:
    """Nobody else makes what all share."""
    with (lab / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def base(lab: Path, suite: str) -> Path:
    """A Debian root file system (70 s, once), and the key that its root takes."""
    root = lab / ("rootfs" if suite == "bookworm" else f"rootfs-{suite}")
    if not (root / "etc/debian_version").exists():
        partial = root.with_name(f"{root.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        options = ["--variant=minbase", f"--include={BASE}"]
        command = ["debootstrap", *options, suite, partial, MIRROR]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        partial.rename(root)
    if not (lab / "key").exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", lab / "key"]
        subprocess.run(command, check=True)
    return root


def prepared(lab: Path, suite: str) -> Path:
    """A layer over the base with PREPARED installed, and the kernel whose headers it has."""
    root = base(lab, suite)
    layer = lab / f"prepared-{suite}"
    if (layer / "kernel").exists():
        return layer
    shutil.rmtree(layer, ignore_errors=True)
    (layer / "upper").mkdir(parents=True)
    (layer / "work").mkdir()
    divert_modprobe(root, layer / "upper")
    script = f"""set -e
mkdir {layer}/root
mount -t overlay overlay -o lowerdir={root},upperdir={layer}/upper,workdir={layer}/work {layer}/root
export DEBIAN_FRONTEND=noninteractive
chroot {layer}/root apt-get update -qq
chroot {layer}/root apt-get install -y -qq --no-install-recommends {PREPARED}
"""
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (kernel,) = (layer / "upper/usr/lib/modules").iterdir()
    (layer / "kernel").write_text(kernel.name)
    return layer


def divert_modprobe(root: Path, upper: Path) -> None:
    """Put the simulated modprobe where kmod's own would be, now or once it is installed."""
    diversions = (root / "var/lib/dpkg/diversions").read_text()
    for path in ("/sbin/modprobe", "/usr/sbin/modprobe"):
        diversions += f"{path}\n{path}.real\n:\n"
    (upper / "var/lib/dpkg").mkdir(parents=True, exist_ok=True)
    (upper / "var/lib/dpkg/diversions").write_text(diversions)
    (upper / "usr/sbin").mkdir(parents=True, exist_ok=True)
    shutil.copy(FAKES / "host/modprobe", upper / "usr/sbin/modprobe")


def add_cards(root: Path, upper: Path, gpus: str, kernel: str) -> None:
    """Write what volta-fake shows on a host with these cards (a name of tests/data/fakegpu)."""
    fake = load(gpus)
    library = upper / "usr/lib/fakegpu"
    library.mkdir(parents=True)
    for name in ("host/volta-fake", "state_file.py", "fakesmi.py"):
        shutil.copy(FAKES / name, library)
    home = upper / "var/lib/fakegpu"
    for name in ("module", "firmware", "driver"):
        (home / name).mkdir(parents=True)
    (home / "state").write_text("\n".join(flatten(fake.state)) + "\n")
    scratch = upper.parent / "tree"
    dummy = upper.parent / "library"
    dummy.write_text("")
    make_tree(scratch, fake, dummy)
    (scratch / "sys/bus/pci/devices").rename(home / "pci")
    shutil.rmtree(scratch)
    (home / "devices").write_text("")
    (home / "osrelease").write_text(f"{kernel}\n")
    (home / "cmdline").write_text(f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=/dev/sda1 ro quiet\n")
    modules = upper / "usr/lib/modules" / kernel
    modules.mkdir(parents=True, exist_ok=True)
    for name in ("modules.builtin", "modules.order", "modules.dep"):
        (modules / name).touch()
    (upper / "boot").mkdir()
    (upper / f"boot/vmlinuz-{kernel}").write_text("no kernel\n")
    if not (root / "usr/sbin/modprobe").exists():
        divert_modprobe(root, upper)
    unit = upper / "etc/systemd/system/volta-fake.service"
    (unit.parent / "sysinit.target.wants").mkdir(parents=True)
    shutil.copy(FAKES / "host/volta-fake.service", unit)
    (unit.parent / "sysinit.target.wants" / unit.name).symlink_to(unit.relative_to(upper.parent))
    # The confined unit sets modes by the fake nvidia-smi, which writes where no real one does.
    confined = unit.parent / "volta-gpu-mode.service.d"
    confined.mkdir()
    (confined / "fake.conf").write_text("[Service]\nReadWritePaths=/var/lib/fakegpu\n")
