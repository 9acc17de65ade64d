"""The `units` section: settings and state of the units that serve and that GPUs need."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class UnitsFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Effective settings and state of the units that serve, and of those that GPUs need."""


def collect(probe: Probe) -> UnitsFacts:
    raise CannotLook("not collected yet")
