"""What goes wrong on the way to a driver: one message at the right task, and a rerun completes.

Each test has a host with fake V100s of its own, makes something wrong, looks at what the play says,
mends it as the message tells, and runs the play again.
"""

import subprocess
import time

import pytest
from lab import FAULTS, ansible_playbook, driver_variables
from packages import BROKEN
from repository import Mirror, make_repository

TAGS = ("--tags", "preflight,driver,gpu_mode")
NEWEST = "580.95.05"


@pytest.fixture
def run(play, repository):
    """Return a function that plays what concerns the driver on a host."""

    def run(host, *arguments, **variables):
        variables = {**repository.variables, **variables}
        return play("site.yml", [host], *TAGS, *arguments, check=False, **variables)

    return run


def told(outcome, host, task, *words):
    """Assert that the play failed once, at `task`, with one message that has all the words."""
    assert outcome.code != 0, outcome.output
    failures = outcome.words.count(f"fatal: [{host.name}]")
    assert failures + outcome.words.count(f"failed: [{host.name}]") == 1, outcome.output
    assert outcome.recap[host.name]["failed"] == 1
    place = outcome.output.rfind("TASK [", 0, outcome.output.find(f"[{host.name}]: FAILED!"))
    assert task in outcome.output[place:].splitlines()[0], outcome.output[place:]
    message = " ".join(outcome.output[place:].split())
    for word in words:
        assert word in message, f"{word!r} is not in: {message}"


def right(outcome, host):
    """Assert that the play made the host right."""
    assert outcome.code == 0, outcome.output
    assert host.run("nvidia-smi --query-gpu=ecc.mode.current --format=csv,noheader").stdout
    assert NEWEST in host.run("cat /proc/driver/nvidia/version").stdout
    assert "nvidia-kernel-dkms" in host.run("apt-mark showhold").stdout


REFUSED = {
    "t4": ("preflight : Refuse", ["this is 2 x T4 (Turing)", "0000:1a:00.0", "not a V100"]),
    "lost": ("preflight : Refuse", ["0000:1a:00.0", "bus"]),
    "runfile": ("preflight : Refuse", ["nvidia-uninstall"]),
    "secure-boot": ("preflight : Refuse", ["Secure Boot", "mok"]),
}
UNDO = {
    "t4": "for card in /var/lib/fakegpu/pci/*; do echo 0x1db1 >$card/device; done",
    "lost": "cd /var/lib/fakegpu; rm pci/*/config; sed -i /handle_error/d state",
    "runfile": "rm /usr/bin/nvidia-uninstall /var/log/nvidia-installer.log",
    "secure-boot": "rm -r /var/lib/fakegpu/firmware/efi",
}


@pytest.mark.parametrize("fault", REFUSED)
def test_what_preflight_refuses(v100_host, run, fault):
    host = v100_host(fault)
    host.run(FAULTS[fault])
    task, words = REFUSED[fault]
    told(run(host), host, task, *words)
    assert "nvidia" not in host.run("dpkg -l").stdout  # nothing was begun
    host.run(UNDO[fault])
    right(run(host), host)


def test_a_lost_card_of_an_expected_number(v100_host, run):
    host = v100_host("gone")
    host.run(FAULTS["gone"])
    told(run(host, preflight_expected_gpus=2), host, "preflight : Refuse", "1", "2")


def test_another_process_holds_apts_lock(v100_host, run):
    host = v100_host("lock")
    hold = "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(f, 2);"
    host.run(f'systemd-run --unit=holder python3 -c "{hold} time.sleep(900)"')
    told(run(host, driver_lock_timeout=5), host, "driver : ", "lock", "5 s")
    host.run("systemctl stop holder")
    right(run(host), host)


def test_packages_of_two_branches_that_are_held(v100_host, run, repository):
    """A driver that an administrator has held, and half of another branch beside it."""
    host = v100_host("branches")
    url = repository.variables["driver_mirror_url"]
    host.run(f"echo 'deb [trusted=yes] {url} ./' >/etc/apt/sources.list.d/own.list; apt-get update")
    held = {"nvidia-kernel-dkms": "535.261.03", "libnvidia-ml1": "590.44.01"}
    for name, version in held.items():
        host.run(f"apt-get install -y --no-install-recommends {name}={version}-1", 300)
    host.run(f"rm /etc/apt/sources.list.d/own.list; apt-mark hold {' '.join(held)}")
    told(run(host), host, "driver : Refuse", *held, *held.values(), "apt-mark unhold")
    host.run(f"apt-mark unhold {' '.join(held)}")
    right(run(host), host)


def test_headers_that_no_mirror_has(v100_host, run):
    host = v100_host("headers")
    old = "6.1.0-1-amd64"
    host.run(
        f"echo {old} >/var/lib/fakegpu/osrelease; cd /lib/modules; mkdir {old};"
        f" touch {old}/modules.builtin {old}/modules.order {old}/modules.dep /boot/vmlinuz-{old}"
    )
    told(run(host), host, "Refuse", f"linux-headers-{old}")
    kernel = host.run(f"ls /lib/modules | grep -v {old}").stdout.strip()
    host.run(f"echo {kernel} >/var/lib/fakegpu/osrelease; rm -r /lib/modules/{old} /boot/*{old}")
    right(run(host), host)


def test_a_module_that_does_not_compile(v100_host, run):
    host = v100_host("dkms")
    outcome = run(host, driver_version=BROKEN)
    told(outcome, host, "driver : Say why", "this kernel is too new for this driver", BROKEN)
    right(run(host, driver_version=NEWEST), host)


def test_a_full_disk(v100_host, run):
    host = v100_host("disk")
    archives = "/var/cache/apt/archives"
    host.run(f"mkdir -p {archives} && mount -t tmpfs -o size=64k none {archives}")
    host.run(f"mkdir {archives}/partial; cat /dev/zero >{archives}/filler", check=False)
    told(run(host), host, "driver : Say why", "disk is full")
    host.run(f"umount {archives}")
    right(run(host), host)


def with_nouveau(host):
    """The host, booted with nouveau on its cards."""
    host.run(FAULTS["nouveau"])
    host.run("systemctl reboot", check=False)
    time.sleep(2)
    host.wait()
    return host


def test_nouveau_holds_the_cards(v100_host, run):
    host = with_nouveau(v100_host("nouveau"))
    before = host.run("cat /proc/sys/kernel/random/boot_id; ls /sys/module").stdout
    assert "nouveau" in before
    told(run(host, reboot_allowed=False), host, "reboot : ", "nouveau")
    right(run(host), host)  # by a reboot
    after = host.run("cat /proc/sys/kernel/random/boot_id; ls /sys/module").stdout
    assert after.splitlines()[0] != before.splitlines()[0]
    assert "nouveau" not in after


def test_an_expired_key(v100_host, run, tmp_path):
    host = v100_host("key")
    fingerprint = make_repository(tmp_path / "expired", expired=True)
    mirror = Mirror(tmp_path / "expired").start()
    outcome = run(host, **driver_variables(mirror.url, fingerprint))
    told(outcome, host, "driver : Say why", "key is not accepted any more", "EXPKEYSIG")
    right(run(host), host)


def test_a_mirror_that_goes_down_half_way(v100_host, run, tmp_path):
    host = v100_host("mirror")
    fingerprint = make_repository(tmp_path / "mirror")
    mirror = Mirror(tmp_path / "mirror").start()
    mirror.dies_after = 2
    variables = driver_variables(mirror.url, fingerprint)
    told(run(host, **variables), host, "driver : Say why", "Failed to fetch", "run again")
    mirror.dies_after = None
    right(run(host, **variables), host)


def test_a_host_that_does_not_come_back(v100_host, run):
    host = with_nouveau(v100_host("away"))
    host.run(FAULTS["stays-down"])
    outcome = run(host, reboot_timeout=20)
    told(outcome, host, "reboot : ", "20 s", "console")


def test_a_killed_controller(v100_host, run, repo, repository, tmp_path):
    """Killed while packages are installed; the next run finishes what dpkg has half done."""
    host = v100_host("killed")
    process = subprocess.Popen(
        ansible_playbook(tmp_path, "site.yml", [host], *TAGS, **repository.variables),
        cwd=repo / "playbooks",
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    host.run("until pgrep -x dkms || pgrep -f 'dpkg .*--unpack'; do sleep 0.1; done", 120)
    process.kill()
    host.run("pkill -KILL -f apt-get; pkill -KILL dpkg; pkill -KILL -f dkms; true", check=False)
    process.wait()
    right(run(host), host)
