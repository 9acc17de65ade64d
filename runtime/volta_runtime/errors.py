"""Errors whose text is written for the user: shown as it stands, without a traceback."""


class VoltaError(Exception):
    """Something the user can act on; the message names the file, field or flag and the remedy."""


class ModelError(VoltaError):
    """The checkpoint cannot be served as asked: unsupported, incomplete or too large."""


class RequestError(VoltaError):
    """A request that can never succeed as sent.

    `param` is the offending field of the request, `code` a machine-readable reason.
    """

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(VoltaError):
    """Every slot is taken and the waiting queue is at its bound: try again later."""


class EngineDeadError(VoltaError):
    """The engine thread has ended; the process must be restarted."""
