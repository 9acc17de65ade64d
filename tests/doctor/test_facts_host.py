"""What the host section says of memory, swap, file systems and MPS."""

import pytest

from volta_doctor.facts import host as host_facts
from volta_doctor.facts.host import disks, memory
from volta_doctor.facts.host.memory import HugePages, NumaNode, Swap
from volta_doctor.facts.serve import Server
from volta_doctor.probe import CannotLook, Disk

GIB = 1 << 30
MEMINFO = """MemTotal:       65536000 kB
MemFree:          200000 kB
MemAvailable:   32768000 kB
SwapTotal:       8388604 kB
SwapFree:        8388604 kB
HugePages_Total:      10
Hugepagesize:       2048 kB
DirectMap4k:      600000 kB
"""
HOST = {
    "/etc/os-release": "ID=debian\n",
    "/proc/cmdline": "quiet\n",
    "/proc/cpuinfo": "flags : fpu\n",
    "/proc/meminfo": MEMINFO,
    "/proc/self/mountinfo": "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "99 22 8:17 / /srv/my\\040models ro - ext4 /dev/sdb1 ro\n",
    "/proc/stat": "btime 1796000000\n",
    "/proc/sys/kernel/hostname": "gpu1\n",
    "/proc/sys/kernel/osrelease": "6.1.0-9-amd64\n",
}
IN_USE = MEMINFO.replace("SwapFree:        8388604", "SwapFree:        8000000")


def test_memory_of_a_host(host):
    pages, node = "/sys/kernel/mm/hugepages", "/sys/devices/system/node"
    facts = host_facts.collect(
        host(
            files=HOST
            | {
                f"{pages}/hugepages-2048kB/nr_hugepages": "10\n",
                f"{pages}/hugepages-2048kB/free_hugepages": "4\n",
                f"{pages}/hugepages-1048576kB/nr_hugepages": "0\n",
                f"{node}/node0/cpulist": "0-19,40-59\n",
                f"{node}/node10/cpulist": "\n",
                f"{node}/node1/cpulist": "20-39,60-79\n",
                f"{node}/possible": "0-1\n",
                "/tmp/nvidia-mps/control": "",
            },
            disks={"/dev/shm": Disk("/dev/shm", 64 << 20, 1, read_only=False)},
        )
    )
    assert (facts.ram_bytes, facts.available_bytes) == (65536000 * 1024, 32768000 * 1024)
    assert facts.swap == Swap(total_bytes=8388604 * 1024, free_bytes=8388604 * 1024)
    assert facts.huge_pages == [HugePages(page_bytes=2 << 20, count=10, free=4, default=True)]
    assert facts.numa_nodes == [
        NumaNode(node=0, cpus="0-19,40-59"),
        NumaNode(node=1, cpus="20-39,60-79"),
        NumaNode(node=10, cpus=""),
    ]
    assert facts.shm_bytes == 64 << 20
    assert facts.mps_directories == ["/tmp/nvidia-mps"]


@pytest.mark.parametrize(
    ("limit", "available"),
    [("max", 32768000 * 1024), (f"{4 * GIB}", 2 * GIB), (f"{GIB}", 0)],
)
def test_a_container_has_what_its_own_limit_leaves(host, limit, available):
    cgroup = "/sys/fs/cgroup"
    files = {
        "/.dockerenv": "",
        f"{cgroup}/memory.max": f"{limit}\n",
        f"{cgroup}/memory.current": f"{3 * GIB}\n",
        f"{cgroup}/memory.stat": f"anon 5\nfile {GIB}\nfile_mapped 7\n",
    }
    facts = host_facts.collect(host(files=HOST | files))
    assert facts.available_bytes == available


def test_a_container_s_limit_under_cgroup_v1(host):
    cgroup = "/sys/fs/cgroup/memory"
    files = {
        "/.dockerenv": "",
        f"{cgroup}/memory.limit_in_bytes": f"{4 * GIB}\n",
        f"{cgroup}/memory.usage_in_bytes": f"{3 * GIB}\n",
        f"{cgroup}/memory.stat": f"cache {GIB}\nrss 7\n",
    }
    assert host_facts.collect(host(files=HOST | files)).available_bytes == 2 * GIB


def test_what_a_container_hides_is_missing_and_no_more(host):
    facts = host_facts.collect(host(files=HOST | {"/proc/meminfo": IN_USE}))  # no /proc/vmstat
    assert (facts.swap, facts.shm_bytes) == (None, None)
    assert facts.ram_bytes


def swapping(probe, monkeypatch, *pages_in):
    """Let every sleep bring the next value of pswpin; the last one stays."""
    vmstat, values = probe.path("/proc/vmstat"), list(pages_in)

    def next_value(seconds=0.0):
        probe.asked.append(f"sleep {seconds:g}")
        vmstat.write_text(f"pgpgin 1\npswpin {values[0]}\npswpout 7\n")
        if values[1:]:
            values.pop(0)

    next_value()
    probe.asked.clear()
    monkeypatch.setattr(probe, "sleep", next_value)
    return memory.find_swap(probe, memory.parse_meminfo(IN_USE))


def test_a_quiet_swap_is_sampled_for_half_a_second(host, monkeypatch):
    probe = host(files=HOST)
    swap = swapping(probe, monkeypatch, 1000, 1050)
    assert (swap.in_per_s, swap.out_per_s, swap.seconds) == (100.0, 0.0, 0.5)
    assert probe.asked == ["sleep 0.5"]


def test_thrashing_is_told_from_a_moment(host, monkeypatch):
    probe = host(files=HOST)
    moment = swapping(probe, monkeypatch, 1000, 1150)
    assert (moment.in_per_s, moment.seconds) == (100.0, 1.5)
    thrashing = swapping(probe, monkeypatch, *range(1000, 100_000, 51))
    assert (thrashing.in_per_s, thrashing.seconds) == (102.0, 10.0)


def test_file_systems_of_models_and_caches(host):
    server = Server(
        name="a.service",
        engine="vllm",
        source="/proc/7",
        home="/home/a",
        model_dir="/srv/models/m",
        env={"HF_HOME": "/cache/hf", "CUDA_MPS_PIPE_DIRECTORY": "/run/mps"},
    )
    probe = host(
        files=HOST | {"/srv/models/m/config.json": "", "/home/a/x": "", "/run/mps/control": ""},
        disks={
            # a link to another file system, and a cache that is not there yet
            "/srv/models/m": Disk("/srv/my models/m", 100, 0, read_only=True),
            "/home/a": Disk("/home/a", 1000, 90, read_only=False),
            "/": Disk("/", 1000, 90, read_only=False),
        },
    )
    (root, models), problem = disks.collect(probe, [server])
    assert problem == ""
    assert (root.mount, root.free_bytes) == ("/", 90)
    assert root.caches == ["/home/a/.cache", "/cache/hf"]
    assert (models.mount, models.models, models.read_only) == (
        "/srv/my models",
        ["/srv/models/m"],
        True,
    )
    assert host_facts.find_mps_directories(probe, [server]) == ["/run/mps"]


def test_a_server_in_a_container_has_mounts_of_its_own(host):
    model = "/proc/7/root/models/m"
    mounts = "1 0 0:50 / / rw - overlay overlay rw\n2 1 8:1 /x /models ro - ext4 /dev/sda1 ro\n"
    server = Server(name="container 1", engine="vllm", source="/proc/7", model_dir=model)
    probe = host(
        files=HOST | {"/proc/7/mountinfo": mounts, f"{model}/config.json": ""},
        disks={model: Disk(model, 100, 50, read_only=True)},
    )
    found, _ = disks.collect(probe, [server])
    assert [disk.mount for disk in found] == ["/proc/7/root/models"]


def test_shared_memory_of_servers_in_containers(host):
    servers = [
        Server(name=f"container {pid}", engine="vllm", source="/proc/7", container="x", pids=[pid])
        for pid in (7, 8)
    ]
    servers.append(Server(name="pid 9", engine="vllm", source="/proc/9", pids=[9]))
    path = "/proc/7/root/dev/shm"
    probe = host(files=HOST, disks={path: Disk(path, 64 << 20, 1, read_only=False)})
    found = host_facts.find_container_shm(probe, servers)
    assert [(s.server, s.bytes) for s in found] == [
        ("container 7", 64 << 20),
        ("container 8", None),
    ]


def test_a_home_that_may_not_be_entered_lies_on_a_known_file_system(host, monkeypatch):
    mounts = "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 8:2 / /home rw - ext4 /dev/sda2 rw\n"
    servers = [
        Server(name=home, engine="vllm", source="/proc/7", home=home)
        for home in ("/home/a", "/proc/7/root/root")
    ]
    probe = host(
        files=HOST | {"/proc/self/mountinfo": mounts, "/home/b": ""},
        disks={"/home": Disk("/home", 100, 50, read_only=False)},
    )
    there = probe.exists

    def exists(path):
        if str(path).startswith(("/home/a/", "/proc/7/root")):
            raise CannotLook(f"{path}: Permission denied")
        return there(path)

    monkeypatch.setattr(probe, "exists", exists)
    (home,), problem = disks.collect(probe, servers)
    assert (home.mount, home.caches) == ("/home", ["/home/a/.cache"])
    assert problem.startswith("the file system of /proc/7/root/root/.cache is hidden")


def test_a_fault_in_the_search_for_servers_is_told(host, monkeypatch):
    monkeypatch.setattr(host_facts.serve, "find", lambda _probe: {}["x"])
    facts = host_facts.collect(host(files=HOST))
    assert facts.servers_problem == "the search for servers failed: KeyError: 'x'"


def test_a_look_at_the_servers_that_hangs_costs_only_their_own_fields(host, monkeypatch):
    probe = host(files=HOST)

    def hang(_limit, _look):
        raise CannotLook("no answer within 5 s")

    monkeypatch.setattr(probe, "within", hang)
    facts = host_facts.collect(probe)
    assert (facts.file_systems, facts.servers_problem) == (None, "no answer within 5 s")
    assert facts.ram_bytes


def test_device_nodes_are_counted_by_number(host):
    names = ("nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1")
    probe = host(files=HOST | {f"/dev/{name}": "" for name in names})
    assert host_facts.collect(probe).nvidia_nodes == [0, 1, 10]
