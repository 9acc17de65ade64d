"""The `history` section: earlier samples of counters, to tell a rise from an old scar."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class HistoryFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Earlier samples of counters, so that a rise can be told from an old scar."""


def collect(probe: Probe) -> HistoryFacts:
    raise CannotLook("not collected yet")
