"""The listening socket, and who else may have its port; no torch here."""

import errno
import socket
from pathlib import Path

from volta_runtime.errors import VoltaError


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet: clients are refused until the model is ready.

    Raises VoltaError naming the port, and the process that has it where that can be found.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise VoltaError(f"--host {host}: {error.strerror}") from None
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise bind_error(host, port, error) from None
    return sock


def bind_error(host: str, port: int, error: OSError) -> VoltaError:
    """The sentence for a failed bind or listen."""
    if error.errno == errno.EADDRINUSE:
        owner = _listener(port)
        by = f" by {owner}" if owner else ""
        return VoltaError(f"port {port} on {host} is in use{by}; stop it or pass another --port")
    if error.errno == errno.EACCES:
        return VoltaError(f"port {port} needs privileges; pass a --port from 1024 up")
    return VoltaError(f"cannot listen on {host} port {port}: {error.strerror}")


def _listener(port: int) -> str | None:
    """The process, as "name (pid N)", that listens on a TCP port, if /proc lets us see it."""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            # local address, state 0A = LISTEN, inode: proc(5)
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
        except OSError:  # not ours, or gone
            continue
    return None
