"""Room on a host for a model on its way to the GPUs: for checks of hosts and of models."""

from volta_doctor.catalog import Row
from volta_doctor.facts.host import HostFacts
from volta_doctor.facts.host.memory import BUSY_PAGES_PER_S, Swap
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import gib

_GIB = 1 << 30
_DISK_SHARE = 0.10
_REFUSED, _LARGE = 0.7, 0.4  # of RAM; vLLM refuses to start, or warns


def swap_and_disks(row: Row, host: HostFacts) -> Finding:
    """Judge what the host swaps in, and how full the disks of models and caches are."""
    swap, disks = host.swap, host.file_systems
    texts, seen = [], []
    if swap and swap.in_per_s > BUSY_PAGES_PER_S:
        texts.append(f"{swap.in_per_s:.0f} pages a second are swapped in.")
        seen.append(swapping(swap))
    for disk in disks or []:
        if not disk.read_only and disk.free_bytes < _DISK_SHARE * disk.total_bytes:
            share = disk.free_bytes / disk.total_bytes
            texts.append(f"{disk.mount} has {gib(disk.free_bytes)} free ({share:.0%}).")
            seen.append(Evidence(disk.mount, f"holds {', '.join(disk.models + disk.caches)}"))
    if texts:
        return row.warn(" ".join(texts), *seen)
    if swap is None or disks is None or host.servers_problem:
        return row.unknown(f"Swap or disks are not known: {host.servers_problem or 'not told'}.")
    free = ", ".join(f"{gib(disk.free_bytes)} on {disk.mount}" for disk in disks)
    return row.ok(f"Nothing swaps in. Free disk: {free or 'no server uses one'}.")


def swapping(swap: Swap) -> Evidence:
    """Show what is swapped in and out."""
    text = f"{swap.in_per_s:g} pages/s in, {swap.out_per_s:g} out over {swap.seconds:g} s"
    return Evidence("/proc/vmstat", text)


def swap_space(
    row: Row, space: float, ranks: int, ram: int, subject: str, *seen: Evidence
) -> Finding:
    """Judge --swap-space, in GiB for each rank, against the bytes of RAM."""
    share = space * _GIB * ranks / ram
    text = (
        f"--swap-space {space:g} GiB x {ranks} tensor-parallel ranks is {share:.1%}"
        f" of {gib(ram)} of RAM."
    )
    level = row.fail if share > _REFUSED else row.warn if share > _LARGE else row.ok
    return level(text, *seen, subject=subject)
