"""Waits for a call, but not for ever."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call returns. Raises what it raises, TimeoutError when it takes longer.

    A call that would end the process (SystemExit) raises RuntimeError. Nothing can stop a thread:
    one that is too slow is left behind and ends with this process.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(call())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        error = failed[0]
        if isinstance(error, Exception):
            raise error
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
    if not done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return done[0]
