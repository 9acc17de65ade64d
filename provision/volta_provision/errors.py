"""The one error that a user of volta-stack sees."""


class StackError(Exception):
    """A bad stack, lock or source tree; the message names the file, the field and the remedy."""
