"""Memory and disk of the host: enough for the model, and not locked away."""

from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.log import clean, kernel_log, shown, times
from volta_doctor.checks.registry import check
from volta_doctor.checks.servers import tensor_parallel, told
from volta_doctor.facts.checkpoint import CheckpointFacts
from volta_doctor.facts.host import HostFacts
from volta_doctor.facts.host.memory import BUSY_PAGES_PER_S, LONG_SAMPLE_S, HugePages
from volta_doctor.facts.kernel_log.events import Kill, kills
from volta_doctor.facts.model import Facts, Missing, Section
from volta_doctor.facts.serve import ServeFacts
from volta_doctor.findings import HOST, Evidence, Finding, Step
from volta_doctor.host_room import swap_and_disks, swap_space, swapping
from volta_doctor.words import gib

_HUGE_SHARE = 0.25
_SYSCTL_FILE = "/etc/sysctl.d/zz-volta-hugepages.conf"
# Beginnings of the names that the kernel has for servers of language models (15 bytes at most).
_SERVER_NAMES = (
    "python",
    "pt_main_thread",
    "VLLM::",
    "ray::",
    "volta-serve",
    "vllm",
    "sglang",
    "lmdeploy",
    "llama-server",
    "ollama",
    "text-generation",
)


@check("hugepages")
def hugepages(facts: Facts, row: Row) -> Finding:
    """Reserved pages are lost to everything that does not ask for them."""
    host = facts.host.need()
    if host.huge_pages is None or not host.ram_bytes:
        raise Missing("The snapshot does not tell the huge pages or the RAM")
    reserved = sum(pages.count * pages.page_bytes for pages in host.huge_pages)
    share = reserved / host.ram_bytes
    seen = [
        Evidence(
            f"/sys/kernel/mm/hugepages/hugepages-{pages.page_bytes // 1024}kB",
            f"{pages.count} reserved, {pages.free} free",
        )
        for pages in host.huge_pages
    ]
    text = f"Huge pages reserve {gib(reserved)} of {gib(host.ram_bytes)} ({share:.0%})."
    if share > _HUGE_SHARE:
        return row.warn(text, *seen, steps=_fewer(host, host.huge_pages))
    return row.ok(text, *seen)


def _fewer(host: HostFacts, sizes: list[HugePages]) -> list[Step]:
    """Return the steps where the default size alone is too much and enough of it is free."""
    others = sum(pages.count * pages.page_bytes for pages in sizes if not pages.default)
    left = int(host.ram_bytes * _HUGE_SHARE) - others
    default = next((pages for pages in sizes if pages.default), None)
    if default is None or left < 0:
        return []
    allowed, used = left // default.page_bytes, default.count - default.free
    if used > allowed:
        return []
    return [
        Step(write=_SYSCTL_FILE, content=f"vm.nr_hugepages = {allowed}\n"),
        Step(
            run=["sysctl", "-w", f"vm.nr_hugepages={allowed}"],
            undo=["sysctl", "-w", f"vm.nr_hugepages={default.count}"],
        ),
    ]


@check("host-mem")
def host_mem(facts: Facts, row: Row) -> Iterable[Finding]:
    """A running server holds its model already; the next one to load it needs the room."""
    host, models = facts.host.need(), facts.checkpoint.need().models
    if not models:
        yield row.skip("No server on this host is told a model.")
        return
    for model in models:
        yield _room(row, host, model, facts.serve)
    yield swap_and_disks(row, host)


def _room(row: Row, host: HostFacts, model: CheckpointFacts, serve: Section[ServeFacts]) -> Finding:
    name, shard, free = model.server, model.largest_shard_bytes, host.available_bytes
    if serve.data and any(s.name == name and s.pids for s in serve.data.servers):
        return row.ok(f"{name} runs: it has loaded its model, or is at it.", subject=name)
    if shard is None:
        why = model.problem or "the snapshot does not tell"
        return row.unknown(f"How large the model's files are is not known: {why}.", subject=name)
    if free is None:
        return row.unknown("The host does not tell how much RAM is available.", subject=name)
    text = f"{gib(free)} of RAM are available, and the model's largest file has {gib(shard)}."
    seen = [
        Evidence("/proc/meminfo", f"MemAvailable {gib(free)}"),
        Evidence(f"{model.path}", f"largest file {gib(shard)}"),
    ]
    if free >= shard:
        return row.ok(text, *seen, subject=name)
    if serve.data is None:
        return row.unknown(f"{text} Whether it is loaded: {serve.error}.", *seen, subject=name)
    return row.fail(f"Only {text}", *seen, subject=name)


@check("swap-space-thrash")
def swap_space_thrash(facts: Facts, row: Row) -> Iterable[Finding]:
    """Each rank of vLLM pins its own swap space in RAM."""
    host, servers = facts.host.need(), facts.serve.need().servers
    if not servers:
        yield row.skip("There is no server on this host.")
        return
    for server in servers:
        space, ranks = server.flags.swap_space_gib, tensor_parallel(server)
        if space and host.ram_bytes:
            yield swap_space(row, space, ranks, host.ram_bytes, server.name, told(server))
    yield _thrashing(row, host, [server.name for server in servers if server.pids])


def _thrashing(row: Row, host: HostFacts, running: list[str]) -> Finding:
    swap = host.swap
    if swap is None:
        return row.unknown("The host does not tell whether it swaps.")
    if not running:
        return row.ok("No server runs, so none is slowed down by swapping.")
    rate = max(swap.in_per_s, swap.out_per_s)
    if rate > BUSY_PAGES_PER_S and swap.seconds >= LONG_SAMPLE_S:
        text = f"{rate:.0f} pages a second over {swap.seconds:g} s while {running[0]} runs."
        return row.warn(text, swapping(swap))
    if swap.seconds == 0:
        return row.ok("No swap space is in use.")
    return row.ok(f"{rate:.0f} pages a second were swapped over {swap.seconds:g} s.")


@check("oom-kill")
def oom_kill(facts: Facts, row: Row) -> Iterable[Finding]:
    """A kill in a cgroup is MemoryMax's; one on the whole host is for want of RAM."""
    serve = facts.serve.data
    found: dict[str, list[Kill]] = {}
    spared: list[str] = []
    for kill in kills(kernel_log(facts)):
        name = _server_of(kill, serve)
        if name:
            found.setdefault(name, []).append(kill)
        else:
            spared.append(kill.name)
    for name, of_name in found.items():
        last = of_name[-1]
        why = "its cgroup reached its limit" if last.limited else "the host ran out of memory"
        held = f", when it held {gib(last.rss_bytes)}" if last.rss_bytes else ""
        moment = f", {last.event.moment}" if last.event.moment else ""
        text = (
            f"{last.name} (pid {last.pid}) was killed because {why}{moment}{held};"
            f" servers were killed {times(len(of_name))}."
        )
        seen = shown([kill.event for kill in of_name])
        yield row.warn(text, *seen, subject=name, count=len(of_name))
    if not found:
        others = f", only of {', '.join(dict.fromkeys(spared))}" if spared else ""
        yield row.ok(f"There is no kill of a server {clean(facts)}{others}.")


def _server_of(kill: Kill, serve: ServeFacts | None) -> str | None:
    """Return the server that was killed, `host` for one of unknown name, None for no server."""
    servers = serve.servers if serve else []
    for server in servers:
        if kill.pid in server.pids or (kill.unit and kill.unit == server.unit):
            return server.name
    programs = {server.argv[0].rsplit("/", 1)[-1][:15] for server in servers if server.argv}
    is_server = kill.name in programs or kill.name.startswith(_SERVER_NAMES)
    return HOST if is_server else None
