"""What a profile says that such a host has; a check compares it with what it finds."""

import msgspec


class Expect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of a whole host, and of each of its GPUs; None where the profile does not say."""

    gpus: int | None = None
    nvswitches: int | None = None
    nvlinks: int | None = None
    pcie_width: int | None = None
    pcie_generation: int | None = None
