"""Every environment variable the runtime reads at run time."""

import os

API_KEY = "VOLTA_API_KEY"
NOTIFY_SOCKET = "NOTIFY_SOCKET"


def api_key() -> str | None:
    """The key that clients must send, or None when the server is open."""
    return os.environ.get(API_KEY) or None


def notify_socket() -> str | None:
    """Where systemd awaits readiness (sd_notify(3)), or None outside a Type=notify unit."""
    return os.environ.get(NOTIFY_SOCKET) or None
