"""The `toolchain` section: every nvcc and ptxas a build may take, and the variables that steer it."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class ToolchainFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every nvcc and ptxas that a build would take, and the variables that steer it."""


def collect(probe: Probe) -> ToolchainFacts:
    raise CannotLook("not collected yet")
