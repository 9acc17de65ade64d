"""The `active` section: what the opt-in measurements found; they load the GPUs."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class ActiveFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the opt-in measurements found; they load the GPUs."""


def collect(probe: Probe) -> ActiveFacts:
    raise CannotLook("not collected yet")
