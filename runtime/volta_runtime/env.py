"""Every environment variable the runtime reads or sets."""

import os

# Every option of `volta-serve serve` has a variable: VOLTA_SERVE_PORT is --port.
PREFIX = "VOLTA"
API_KEY = "VOLTA_API_KEY"
NOTIFY_SOCKET = "NOTIFY_SOCKET"
WATCHDOG_USEC = "WATCHDOG_USEC"
OMP_WAIT_POLICY = "OMP_WAIT_POLICY"


def api_key() -> str | None:
    """The key that clients must send, or None when the server is open."""
    return os.environ.get(API_KEY) or None


def notify_socket() -> str | None:
    """Where systemd awaits readiness (sd_notify(3)), or None outside a Type=notify unit."""
    return os.environ.get(NOTIFY_SOCKET) or None


def watchdog_s() -> float | None:
    """Seconds without a sign of life after which systemd ends us, or None where it does not."""
    return int(os.environ.get(WATCHDOG_USEC, 0)) / 1e6 or None


def yield_idle_cores() -> None:
    """Let OpenMP threads sleep while they wait; to be called before torch is imported.

    They spin by default, and so take the cores from the kernels' own threads and from other
    processes: on two cores shared with a compiler a decode step took 184 ms instead of 17.
    """
    os.environ.setdefault(OMP_WAIT_POLICY, "PASSIVE")
