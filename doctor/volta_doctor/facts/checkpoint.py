"""The `checkpoint` section: the sizes of the models that servers load, from their headers alone."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class CheckpointsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sizes of the models that servers load, from their headers alone."""


def collect(probe: Probe) -> CheckpointsFacts:
    raise CannotLook("not collected yet")
