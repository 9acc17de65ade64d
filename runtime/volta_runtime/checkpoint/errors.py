"""The one error of this package."""

from volta_runtime.errors import VoltaError


class CheckpointError(VoltaError):
    """A checkpoint cannot be used; the message names the file or tensor and the remedy."""
