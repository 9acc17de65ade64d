"""Collectors of the machine, its kernel, modules, log and processes."""

import pytest

from volta_doctor.facts import dkms, kernel_log, modules, pci, processes
from volta_doctor.facts import host as host_facts
from volta_doctor.probe import CannotLook

K, NEW = "6.1.0-9-amd64", "6.1.0-40-amd64"
KERNEL = {"/proc/sys/kernel/osrelease": f"{K}\n"}
HOST = KERNEL | {
    "/etc/os-release": 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n',
    "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz ro quiet iommu=pt\n",
    "/proc/sys/kernel/hostname": "gpu1\n",
    "/proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB\n",
    "/proc/stat": "cpu 1 2\nbtime 1796000000\n",
    "/proc/cpuinfo": "processor : 0\nflags\t\t: fpu vme avx2\n",
}
EFI = "/sys/firmware/efi/efivars/"
SECURE_BOOT = EFI + host_facts._SECURE_BOOT


def test_host_on_bare_metal(host):
    facts = host_facts.collect(host(files=HOST))
    assert (facts.os_id, facts.os_version, facts.hostname) == ("debian", "12", "gpu1")
    assert (facts.virtual, facts.container, facts.secure_boot) == (False, None, False)
    assert (facts.ram_bytes, facts.boot_time) == (16384 * 1024, 1796000000)


@pytest.mark.parametrize(
    ("extra", "field", "value"),
    [
        ({"/proc/cpuinfo": "flags : fpu hypervisor\n"}, "virtual", True),
        ({"/proc/cpuinfo": "platform\t: PowerNV\n"}, "virtual", False),
        ({"/proc/cpuinfo": "Hardware : x\n"}, "virtual", None),
        ({"/proc/sys/kernel/osrelease": "5.15.1-microsoft-standard-WSL2\n"}, "virtual", True),
        ({"/.dockerenv": ""}, "container", "docker"),
        ({"/run/systemd/container": "systemd-nspawn\n"}, "container", "systemd-nspawn"),
        ({"/run/secrets/kubernetes.io": None}, "container", "kubernetes"),
        ({"/proc/1/environ": "PATH=/sbin\0container=lxc\0"}, "container", "lxc"),
        ({"/proc/1/environ": "PATH=/sbin\0mycontainer=no\0"}, "container", None),
        # docker hides /sys/firmware: absent there does not mean a BIOS boot
        ({"/.dockerenv": ""}, "secure_boot", None),
        ({SECURE_BOOT: b"\6\0\0\0\1"}, "secure_boot", True),
        ({SECURE_BOOT: b"\6\0\0\0\0"}, "secure_boot", False),
        ({EFI: None}, "secure_boot", None),
        (
            {SECURE_BOOT: b"\6\0\0\0\1", EFI + host_facts._SHIM_DISABLED: b"\6\0\0\0\1"},
            "secure_boot",
            False,
        ),
    ],
)
def test_host_signs(host, extra, field, value):
    assert getattr(host_facts.collect(host(files=HOST | extra)), field) == value


def test_enrolled_keys():
    text = (
        "0f1 I------ 1 perm 1f030000 0 0 asymmetri Debian CA: 6ccece7e: X509.rsa c3 []\n"
        "0f2 I------ 1 perm 1f0b0000 0 0 keyring   .platform: 2\n"
    )
    assert host_facts.parse_keys(text) == ["Debian CA: 6ccece7e"]


def device(bus_id, vendor="0x10de", device_id="0x1db5", pci_class="0x030200", driver=None):
    here = f"{pci.DEVICES}/{bus_id}"
    files = {f"{here}/vendor": vendor, f"{here}/device": device_id, f"{here}/class": pci_class}
    return files | ({f"{here}/driver": f"-> ../../bus/pci/drivers/{driver}"} if driver else {})


def test_pci_tells_gpus_from_switches_and_other_vendors(host):
    files = {
        **device("0000:1a:00.0", driver="nvidia"),
        **device("0000:1b:00.0", device_id="0x1ac1", pci_class="0x068000"),
        **device("0000:00:02.0", vendor="0x8086", pci_class="0x030000"),
    }
    facts = pci.collect(host(files=files))
    assert [d.bus_id for d in facts.devices] == ["0000:1a:00.0", "0000:1b:00.0"]
    assert [(d.bus_id, d.driver) for d in facts.gpus] == [("0000:1a:00.0", "nvidia")]


def test_pci_that_cannot_show_cards_is_no_empty_bus(host):
    with pytest.raises(CannotLook, match="does not exist"):
        pci.collect(host())
    with pytest.raises(CannotLook, match="WSL"):
        pci.collect(host(files=device("0:0", vendor="0x1414") | {"/dev/dxg": ""}))


MODINFO = """filename:       /lib/modules/x/updates/dkms/nvidia.ko
alias:          char-major-195-*
version:        {version}
license:        NVIDIA
license:        second
signer:         DKMS module signing key
parm:           NVreg_ResmanDebugLevel:int
"""


def test_modules_of_the_running_and_the_newest_kernel(host):
    probe = host(
        files=KERNEL
        | {
            "/sys/module/nvidia/initstate": "live\n",
            "/sys/module/nvidia_uvm/initstate": "live\n",
            "/sys/module/nouveau/parameters/debug": "",  # built in, or not wholly loaded
            "/sys/module/ext4/initstate": "live\n",
            modules.PROC_VERSION: "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05\n",
            f"/lib/modules/{K}/modules.dep": "dkms/nvidia-uvm.ko: x\ndkms/nvidia.ko:\n",
            f"/lib/modules/{K}/modules.builtin": "",
            f"/lib/modules/{NEW}/modules.builtin": "",
            # headers alone, for which DKMS has built a module
            "/lib/modules/6.1.0-41-amd64/modules.dep": "dkms/nvidia.ko:\n",
            f"/lib/modules/{NEW}/modules.dep": "fs/ext4.ko:\ndkms/nvidia.ko.xz: a\n",
            "/lib/modules/6.1.0-22-amd64/modules.dep": "",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "-> libnvidia-ml.so.580.95.05",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05": "",
        },
        commands={
            f"modinfo /lib/modules/{K}/dkms/nvidia.ko": MODINFO.format(version="580.95.05"),
            f"modinfo /lib/modules/{NEW}/dkms/nvidia.ko.xz": MODINFO.format(version="535.247.01"),
        },
    )
    facts = modules.collect(probe)
    assert facts.loaded == ["nvidia", "nvidia_uvm"]
    assert (facts.loaded_version, facts.loaded_open) == ("580.95.05", False)
    assert [(m.kernel, m.version, m.license) for m in facts.on_disk] == [
        (K, "580.95.05", "NVIDIA"),
        (NEW, "535.247.01", "NVIDIA"),
    ]
    assert [library.version for library in facts.libraries] == ["580.95.05"]


def test_debian_s_choice_among_several_modules(host):
    here = f"/lib/modules/{K}"
    probe = host(
        files=KERNEL
        | {
            f"{here}/modules.builtin": "",
            f"{here}/modules.dep": "dkms/nvidia-current.ko:\ndkms/nvidia-current-open.ko:\n",
            "/etc/modprobe.d/nvidia.conf": "install nvidia modprobe -i nvidia-current-open $OPTS\n",
        },
        commands={f"modinfo {here}/dkms/nvidia-current-open.ko": "license: Dual MIT/GPL\n"},
    )
    (module,) = modules.collect(probe).on_disk
    assert module.license == "Dual MIT/GPL"


def test_alternatives_are_followed_inside_the_root(host):
    link = "-> /etc/alternatives/glx--libnvidia-ml.so.1"
    probe = host(
        files=KERNEL
        | {
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": link,
            "/etc/alternatives/glx--libnvidia-ml.so.1": "-> /usr/lib/nvidia/libnvidia-ml.so.1",
            "/usr/lib/nvidia/libnvidia-ml.so.1": "-> libnvidia-ml.so.535.247.01",
        }
    )
    (library,) = modules.collect(probe).libraries
    assert library == modules.Library(
        path="/usr/lib/nvidia/libnvidia-ml.so.535.247.01", version="535.247.01"
    )


def test_no_module_anywhere_and_no_lib_modules(host):
    facts = modules.collect(host(files=KERNEL))
    assert (facts.proc_version, facts.on_disk, facts.libraries) == (None, None, [])
    here = f"/lib/modules/{K}"
    empty = {f"{here}/modules.dep": "", f"{here}/modules.builtin": ""}
    facts = modules.collect(host(files=KERNEL | empty))
    assert facts.on_disk == [modules.KernelModule(kernel=K)]


@pytest.mark.parametrize(
    ("line", "version", "is_open"),
    [
        ("NVIDIA UNIX x86_64 Kernel Module  520.56.06  Thu Oct  6", "520.56.06", False),
        ("NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build", "565.57.01", True),
        ("NVIDIA UNIX Open Kernel x86_64 Kernel Module  590.48.01  Mon", "590.48.01", True),
        ("NVIDIA UNIX ppc64le Kernel Module  535.43  Mon", "535.43", False),
    ],
)
def test_every_wording_of_the_version_line(line, version, is_open):
    facts = modules.ModulesFacts(running_kernel=K, proc_version=f"NVRM version: {line}\n")
    assert (facts.loaded_version, facts.loaded_open) == (version, is_open)


def test_dkms_reads_its_tree(host):
    tree = dkms.TREE
    files = {
        f"{tree}/nvidia/580.95.05/{K}/x86_64/module/nvidia.ko": "",
        f"{tree}/nvidia/580.95.05/source/dkms.conf": "",
        f"{tree}/nvidia/kernel-{K}-x86_64": f"-> 580.95.05/{K}/x86_64",
        f"{tree}/nvidia/590.48.01/source/dkms.conf": "",
        f"{tree}/zfs/2.1/{K}/x86_64/module/zfs.ko": "",
    }
    facts = dkms.collect(host(files=files, commands={"dkms": ""}))
    assert facts.present
    assert facts.added == ["nvidia/580.95.05", "nvidia/590.48.01"]
    assert facts.builds == [dkms.DkmsBuild("nvidia", "580.95.05", K)]


KMSG = "6,1,250000,-;NVRM: loading NVIDIA\n SUBSYSTEM=pci\n DEVICE=+pci:0000:1a:00.0\n"
JOURNAL = "[ 9.500] gpu1 kernel: NVRM: late\n[    0.000000] gpu1 kernel: Linux version 6.1\n"
JOURNAL_COMMAND = "journalctl -k -b -q -r --no-pager -o short-monotonic"


def test_kernel_log_from_kmsg(host):
    facts = kernel_log.collect(host(files={"/dev/kmsg": KMSG}))
    assert facts.source == "/dev/kmsg"
    assert facts.lines == [kernel_log.LogLine(0.25, "NVRM: loading NVIDIA")]


def test_the_journal_stands_in_for_an_overwritten_buffer(host):
    late = KMSG.replace("250000", "99000000")
    facts = kernel_log.collect(host(files={"/dev/kmsg": late}, commands={JOURNAL_COMMAND: JOURNAL}))
    assert facts.source == "journalctl -k -b"
    assert [line.text for line in facts.lines] == ["Linux version 6.1", "NVRM: late"]
    assert kernel_log.collect(host(files={"/dev/kmsg": late})).lines[0].time == 99.0


@pytest.mark.parametrize("is_root", [False, True])
def test_a_log_that_cannot_be_read_says_what_was_tried(host, is_root):
    refused = (1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    with pytest.raises(CannotLook) as reason:
        kernel_log.collect(host(commands={"dmesg": refused, JOURNAL_COMMAND: ""}, is_root=is_root))
    for part in ("/dev/kmsg", "journalctl", "Operation not permitted"):
        assert part in str(reason.value)
    assert ("sudo" in str(reason.value)) is not is_root


def process(pid, state, opened=()):
    files = {f"/proc/{pid}/stat": f"{pid} (a (b) c) {state} 1 1", f"/proc/{pid}/fd": None}
    return files | {f"/proc/{pid}/fd/{n}": f"-> {path}" for n, path in enumerate(opened)}


PID_MAX = {"/proc/sys/kernel/pid_max": "32768\n"}


def test_processes_with_a_gpu_open(host):
    probe = host(
        files=PID_MAX
        | {"/dev/nvidia0": ""}
        | process(7, "S", ["/dev/nvidia0", "/dev/nvidia0", "/dev/null"])
        | process(8, "D", ["/dev/null"])
    )
    facts = processes.collect(probe)
    (user,) = facts.gpu_users
    assert (user.pid, user.name, user.devices, user.stuck) == (
        7,
        "a (b) c",
        ["/dev/nvidia0"],
        False,
    )
    assert probe.asked == []


def test_a_process_that_stays_in_d_state_is_stuck(host):
    probe = host(files=PID_MAX | {"/dev/nvidia0": ""} | process(7, "D", ["/dev/nvidia0"]))
    assert processes.collect(probe).gpu_users[0].stuck
    assert probe.asked == ["sleep 0.25"] * 40


def test_a_process_that_leaves_d_state_is_not_waited_for(host, monkeypatch):
    probe = host(files=PID_MAX | {"/dev/nvidia0": ""} | process(7, "D", ["/dev/nvidia0"]))
    stat = probe.path("/proc/7/stat")
    monkeypatch.setattr(probe, "sleep", lambda _: stat.write_text("7 (a) S 1 1"))
    (user,) = processes.collect(probe).gpu_users
    assert (user.state, user.stuck) == ("D", False)


def test_without_gpu_devices_no_process_is_looked_at(host):
    probe = host(files=PID_MAX | process(7, "D", ["/dev/nvidia0"]))
    assert processes.collect(probe).gpu_users == []
