"""The one error of this package."""


class CheckpointError(Exception):
    """A checkpoint cannot be used; the message names the file or tensor and the remedy."""
