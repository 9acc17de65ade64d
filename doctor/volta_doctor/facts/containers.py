"""The `containers` section: the container runtime, its GPU support and cgroup driver."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class ContainersFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The container runtime, its GPU support and cgroup driver."""


def collect(probe: Probe) -> ContainersFacts:
    raise CannotLook("not collected yet")
