"""Runs the collectors side by side, each with its own time limit; none can take another down."""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from volta_doctor.facts import (
    active,
    checkpoint,
    containers,
    dkms,
    ext_cache,
    history,
    host,
    kernel_log,
    modules,
    nvml,
    packages,
    pci,
    processes,
    python_envs,
    release,
    serve,
    service,
    smi,
    so_archs,
    toolchain,
    topo,
    units,
)
from volta_doctor.facts.model import SCHEMA, Facts, Section, Snapshot
from volta_doctor.facts.smi import stand_in
from volta_doctor.probe import CannotLook, NotHere, Probe

_SLOW_COMMAND_S = 10.0
_DYING_S = 0.1  # until a process that has ended or was killed can be reaped


class Collector(NamedTuple):
    """How one section is collected.

    `own_process` is for code that may hang inside the driver: a thread stuck in the kernel would
    keep this process from ever ending, a child can be left behind. `otherwise` gets the section
    and may return a better one from another source.
    """

    collect: Callable[[Probe], Any]
    limit_s: float = _SLOW_COMMAND_S
    own_process: bool = False
    otherwise: Callable[[Probe, Section[Any]], Section[Any]] | None = None


COLLECTORS: dict[str, Collector] = {
    "host": Collector(host.collect, limit_s=host.LIMIT_S),
    "pci": Collector(lambda probe: probe.once(pci.collect)),
    "modules": Collector(modules.collect),
    "nvml": Collector(lambda _probe: nvml.collect(), own_process=True, otherwise=stand_in.for_nvml),
    "smi": Collector(smi.collect, limit_s=smi.LIMIT_S + 2),
    "kernel_log": Collector(kernel_log.collect, limit_s=kernel_log.LIMIT_S),
    "packages": Collector(packages.collect, limit_s=16.0),  # up to three commands
    "dkms": Collector(dkms.collect),
    "processes": Collector(processes.collect, limit_s=processes.STUCK_S + 5),
    "topo": Collector(topo.collect, own_process=True, otherwise=stand_in.for_topo),
    "serve": Collector(serve.collect),
    "units": Collector(units.collect),
    "containers": Collector(containers.collect),
    "checkpoint": Collector(checkpoint.collect),
    "python_envs": Collector(python_envs.collect),
    "so_archs": Collector(so_archs.collect, limit_s=so_archs.LIMIT_S + 4),  # after python_envs
    "ext_cache": Collector(ext_cache.collect),
    "toolchain": Collector(toolchain.collect),
    "history": Collector(history.collect),
    "release": Collector(release.collect),
    "service": Collector(service.collect, limit_s=2 * service.HTTP_LIMIT_S + 5),
}

# Collected only when asked for by name: it loads the GPUs.
OPT_IN: dict[str, Collector] = {
    "active": Collector(active.collect, limit_s=active.LIMIT_S, own_process=True)
}


def gather(
    probe: Probe,
    sections: Iterable[str] | None = None,
    collectors: Mapping[str, Collector] = COLLECTORS | OPT_IN,
    progress: Callable[[Sequence[str]], None] = lambda _: None,
) -> Snapshot:
    """Collect the named sections (all but the opt-in ones by default).

    `progress` is told the sections still waited for. Never raises for what a collector does.
    """
    taken = datetime.now(timezone.utc).isoformat(timespec="seconds")
    wanted = [name for name in collectors if name in (sections or COLLECTORS)]
    # Children first: forking is safe only while this process has a single thread.
    wanted.sort(key=lambda name: not collectors[name].own_process)
    tasks = [_start(name, collectors[name], probe) for name in wanted]
    results: dict[str, Any] = {}
    for index, task in enumerate(tasks):
        progress(wanted[index:])
        name, section = task()
        results[name] = section
    return Snapshot(
        schema=SCHEMA,
        tool=f"volta-doctor {version('volta-stack')}",
        taken=taken,
        facts=Facts(**results),
    )


def look(name: str, collector: Collector, probe: Probe) -> Section[Any]:
    """Run one collector and turn whatever happens into a section."""
    started = time.monotonic()
    try:
        data = collector.collect(probe)
    except CannotLook as reason:
        absent = isinstance(reason, NotHere)
        return Section(ok=False, error=str(reason), not_here=absent, seconds=_since(started))
    except Exception as error:  # a fault in one collector must not hide the other facts
        text = f"{name}: the collector failed: {type(error).__name__}: {error}"
        return Section(ok=False, error=text, seconds=_since(started))
    return Section(ok=True, data=data, seconds=_since(started))


def _start(name: str, collector: Collector, probe: Probe) -> Callable[[], tuple[str, Section[Any]]]:
    """Start a collector; the returned call waits for its section, up to the limit."""
    started = time.monotonic()
    wait = (_fork if collector.own_process else _thread)(name, collector, probe)

    def finish() -> tuple[str, Section[Any]]:
        section = wait(max(0.0, started + collector.limit_s - time.monotonic()))
        if section is None:
            text = f"{name}: no answer within {collector.limit_s:g} s"
            section = Section(ok=False, error=text, seconds=_since(started))
        return name, collector.otherwise(probe, section) if collector.otherwise else section

    return finish


def _thread(
    name: str, collector: Collector, probe: Probe
) -> Callable[[float], Section[Any] | None]:
    found: list[Section[Any]] = []
    thread = threading.Thread(
        target=lambda: found.append(look(name, collector, probe)), daemon=True
    )
    thread.start()

    def wait(seconds: float) -> Section[Any] | None:
        thread.join(seconds)
        return found[0] if found else None

    return wait


def _fork(name: str, collector: Collector, probe: Probe) -> Callable[[float], Section[Any] | None]:
    reader, writer = os.pipe()
    # Python loses a Ctrl-C that comes while it forks; and to a child it means nothing.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            # What a library prints is no part of the report; and a child that is left behind must
            # not hold the pipe that a caller reads this process's output from.
            nowhere = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1, 2):
                os.dup2(nowhere, standard)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(msgspec.json.encode(look(name, collector, probe)))
        finally:
            os._exit(0)
    os.close(writer)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(seconds: float) -> Section[Any] | None:
        deadline = time.monotonic() + seconds
        data = b""
        try:
            while select.select([reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
                chunk = os.read(reader, 65536)
                if not chunk:
                    return _decode(name, data, _reap(child))
                data += chunk
        finally:
            os.close(reader)
        os.kill(child, signal.SIGKILL)
        _reap(child)
        return None

    return wait


def _reap(child: int) -> int | None:
    """Return how a child ended; None where it has not: it may be stuck in the driver."""
    deadline = time.monotonic() + _DYING_S
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.001)


def _decode(name: str, data: bytes, ended: int | None) -> Section[Any]:
    kind = next(field.type for field in msgspec.structs.fields(Facts) if field.name == name)
    try:
        section: Section[Any] = msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError:  # nothing, or not all
        how = f" of {signal.Signals(-ended).name}" if ended and ended < 0 else ""
        return Section(ok=False, error=f"{name}: the collector's process died{how}")
    return section


def _since(started: float) -> float:
    return round(time.monotonic() - started, 4)
