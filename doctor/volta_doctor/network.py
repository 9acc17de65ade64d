"""Asks the servers of this host: HTTP on a port, XML-RPC on a Unix socket.

What it takes to ask is imported then: most looks at a host ask nobody.
"""

import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import xmlrpc.client

_BODY_BYTES = 1 << 20
_RPC_S = 5.0


class Answer(NamedTuple):
    """An HTTP answer; without a `status` no answer came and `error` says why.

    The `body` is that of a success, at most 1 MiB of it.
    """

    status: int | None
    body: str
    seconds: float
    error: str | None = None


def get(url: str, limit: float) -> Answer:
    """Ask an HTTP server, never through a proxy, for at most `limit` seconds."""
    import http.client
    import urllib.error
    import urllib.request

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    started = time.monotonic()
    body = b""
    try:
        with opener.open(url, timeout=limit) as response:
            while len(body) < _BODY_BYTES and (chunk := response.read1(_BODY_BYTES)):
                body += chunk
                if time.monotonic() - started > limit:
                    raise TimeoutError("timed out")
        text = body.decode(errors="replace")
        return Answer(response.status, text, time.monotonic() - started)
    except urllib.error.HTTPError as error:
        error.close()
        return Answer(error.code, "", time.monotonic() - started)
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return Answer(None, "", time.monotonic() - started, str(reason))


def rpc_over(socket_path: str) -> "xmlrpc.client.ServerProxy":
    """Return a proxy of the XML-RPC server that listens on a Unix socket."""
    import http.client
    import socket
    import xmlrpc.client

    class Connection(http.client.HTTPConnection):
        def connect(self) -> None:
            self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.sock.settimeout(self.timeout)
            self.sock.connect(socket_path)

    class Transport(xmlrpc.client.Transport):
        def make_connection(self, _host: Any) -> http.client.HTTPConnection:
            return Connection("localhost", timeout=_RPC_S)

    return xmlrpc.client.ServerProxy("http://localhost/RPC2", transport=Transport())
