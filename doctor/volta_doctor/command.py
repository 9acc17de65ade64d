"""Runs one command to its end or its limit, whatever it does.

A command may hang, even in the kernel, where SIGKILL does not reach it; it may print without end;
and it may leave children behind that hold its output open. None of that may hold the doctor.
"""

import codecs
import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

KEPT_BYTES = 8 << 20  # of each stream, the last ones
_CHUNK_BYTES = 1 << 16
_TICK_S = 0.1  # how often to see whether a silent command has ended
_LINGER_S = 0.3  # for output that is still in the pipes when the command has ended
_DYING_S = 0.2  # for a process that got SIGKILL; one stuck in the kernel stays


class Completed(NamedTuple):
    """A finished command; `exit_code` is None when it was cut off after `seconds`.

    `stdout` and `stderr` hold what it had printed by then, at most the last 8 MiB of each;
    `truncated` says that there was more.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float
    truncated: bool = False

    @property
    def complaint(self) -> str:
        """Why it failed, in its own words where it has any."""
        if self.exit_code is None:
            return f"no answer within {self.seconds:.0f} s"
        return self.stderr.strip() or f"exit code {self.exit_code}"


class _Tail:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self.chunks: deque[bytes] = deque()
        self.size = 0
        self.truncated = False

    def add(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk)
        while self.size > KEPT_BYTES:
            self.size -= len(self.chunks.popleft())
            self.truncated = True

    def text(self) -> str:
        return b"".join(self.chunks).decode(errors="replace")


class _Passed:
    """A stream of which nothing is kept: each piece goes to `take`."""

    truncated = False

    def __init__(self, take: Callable[[str], None]) -> None:
        self.take, self.decoder = take, codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, chunk: bytes) -> None:
        self.take(self.decoder.decode(chunk))

    def text(self) -> str:
        return ""


def run(
    argv: Sequence[str],
    env: Mapping[str, str],
    limit: float,
    executable: Path | None = None,
    take: Callable[[str], None] | None = None,
) -> Completed:
    """Run a command for at most `limit` seconds. Raises OSError when it cannot start.

    With `take` each piece of its output goes there at once, and none is kept.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        argv,
        executable=executable,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    out, err = _Passed(take) if take else _Tail(), _Tail()
    code = _read(process, {process.stdout: out, process.stderr: err}, started + limit)
    if code is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_DYING_S)
    seconds = time.monotonic() - started
    return Completed(code, out.text(), err.text(), seconds, out.truncated or err.truncated)


def _read(
    process: subprocess.Popen[bytes],
    tails: Mapping[IO[bytes] | None, _Tail | _Passed],
    deadline: float,
) -> int | None:
    """Read until all streams end, the command has ended and is silent, or the deadline."""
    with contextlib.ExitStack() as streams, selectors.DefaultSelector() as selector:
        for stream, tail in tails.items():
            if stream:
                streams.enter_context(stream)
                selector.register(stream, selectors.EVENT_READ, tail)
        ended = False
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            ready = selector.select(min(left, _TICK_S))
            for key, _ in ready:
                if chunk := os.read(key.fd, _CHUNK_BYTES):
                    key.data.add(chunk)
                else:
                    selector.unregister(key.fileobj)
            if ended and not ready:
                break  # its children hold the streams
            if not ended and process.poll() is not None:
                ended = True
                deadline = min(deadline, time.monotonic() + _LINGER_S)
        try:  # while its streams are open: one that still prints must not die of our leaving
            return process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
