"""The one error of this package."""


class ConvertError(Exception):
    """The conversion cannot be done; the message names the file, field or tensor and the remedy."""
