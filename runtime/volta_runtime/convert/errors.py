"""The one error of this package."""

from volta_runtime.errors import VoltaError


class ConvertError(VoltaError):
    """The conversion cannot be done; the message names the file, field or tensor and the remedy."""
