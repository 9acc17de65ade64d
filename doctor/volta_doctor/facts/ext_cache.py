"""The `ext_cache` section: extensions that torch compiled on this host, and their locks."""

import msgspec

from volta_doctor.probe import CannotLook, Probe


class ExtCacheFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Caches of extensions that torch compiled on this host, and their build locks."""


def collect(probe: Probe) -> ExtCacheFacts:
    raise CannotLook("not collected yet")
