"""What the host section says of memory: what is free, swap, huge pages and NUMA nodes."""

import re

import msgspec

from volta_doctor.probe import Probe

_NODES = "/sys/devices/system/node"
_HUGE_PAGES = "/sys/kernel/mm/hugepages"
# A container's own limit, what is used of it, and what of that is cache: cgroup v2, then v1.
_CGROUP = "/sys/fs/cgroup"
_LIMITS = (
    ("memory.max", "memory.current", "memory.stat", "file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "cache"),
)

SAMPLE_S = 0.5
LONG_SAMPLE_S = 10.0
# Above this many pages a second the sample goes on, to tell a moment from thrashing.
BUSY_PAGES_PER_S = 100.0


class Swap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Swap space in bytes, and 4 KiB pages a second read from and written to it over `seconds`.

    No rate is taken, and `seconds` is 0, where none of it is in use.
    """

    total_bytes: int = 0
    free_bytes: int = 0
    in_per_s: float = 0.0
    out_per_s: float = 0.0
    seconds: float = 0.0


class HugePages(msgspec.Struct, frozen=True, kw_only=True):
    """The reserved pages of one size; `default` is the size that vm.nr_hugepages speaks of."""

    page_bytes: int
    count: int
    free: int
    default: bool = False


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """A NUMA node and its CPUs as a kernel list (0-19,40-59), empty for a node of memory alone."""

    node: int
    cpus: str


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the sizes of /proc/meminfo in bytes; its counts of pages are left out."""
    return {
        name: int(size) * 1024
        for name, size in re.findall(r"^([\w()]+):\s+(\d+) kB$", text, re.MULTILINE)
    }


def find_available(probe: Probe, meminfo: dict[str, int], container: str | None) -> int | None:
    """Return the bytes that programs can still get, within a container's own limit."""
    available = meminfo.get("MemAvailable")
    if available is None or not container:
        return available
    for limit_file, used_file, stat_file, cache in _LIMITS:
        limit = (probe.text_or_none(f"{_CGROUP}/{limit_file}") or "").strip()
        used = (probe.text_or_none(f"{_CGROUP}/{used_file}") or "").strip()
        if limit.isdigit() and used.isdigit():  # v2 writes max for none
            stat = probe.text_or_none(f"{_CGROUP}/{stat_file}") or ""
            cached = re.search(rf"^{cache} (\d+)$", stat, re.MULTILINE)
            left = int(limit) - int(used) + (int(cached[1]) if cached else 0)
            return max(0, min(available, left))
    return available


def find_swap(probe: Probe, meminfo: dict[str, int]) -> Swap:
    """Measure swapping, for half a second or, while there is much of it, for ten."""
    total, free = meminfo.get("SwapTotal", 0), meminfo.get("SwapFree", 0)
    if total == free:
        return Swap(total_bytes=total, free_bytes=free)
    begin, seconds = _swapped(probe), 0.0
    rates = (0.0, 0.0)
    while seconds == 0.0 or (max(rates) > BUSY_PAGES_PER_S and seconds < LONG_SAMPLE_S):
        probe.sleep(SAMPLE_S)
        seconds += SAMPLE_S
        now = _swapped(probe)
        rates = ((now[0] - begin[0]) / seconds, (now[1] - begin[1]) / seconds)
    return Swap(
        total_bytes=total,
        free_bytes=free,
        in_per_s=round(rates[0], 1),
        out_per_s=round(rates[1], 1),
        seconds=seconds,
    )


def _swapped(probe: Probe) -> tuple[int, int]:
    counts = dict(re.findall(r"^(pswpin|pswpout) (\d+)$", probe.text("/proc/vmstat"), re.M))
    return int(counts.get("pswpin", 0)), int(counts.get("pswpout", 0))


def find_huge_pages(probe: Probe, meminfo: dict[str, int]) -> list[HugePages]:
    """Return every size of which pages are reserved."""
    found = []
    for name in probe.names(_HUGE_PAGES):
        size = re.fullmatch(r"hugepages-(\d+)kB", name)
        count = int(probe.text_or_none(f"{_HUGE_PAGES}/{name}/nr_hugepages") or 0)
        if size and count:
            page = int(size[1]) * 1024
            free = int(probe.text_or_none(f"{_HUGE_PAGES}/{name}/free_hugepages") or 0)
            default = page == meminfo.get("Hugepagesize")
            found.append(HugePages(page_bytes=page, count=count, free=free, default=default))
    return found


def find_numa_nodes(probe: Probe) -> list[NumaNode]:
    """Return the NUMA nodes, none where the kernel knows no NUMA."""
    numbers = sorted(
        int(name[4:]) for name in probe.names(_NODES) if re.fullmatch(r"node\d+", name)
    )
    return [
        NumaNode(node=n, cpus=(probe.text_or_none(f"{_NODES}/node{n}/cpulist") or "").strip())
        for n in numbers
    ]
