"""Which GPU a bus id of the kernel log belongs to."""

from volta_doctor.catalog import compat
from volta_doctor.checks.gpu import subject
from volta_doctor.facts.kernel_log.events import uuids
from volta_doctor.facts.model import Facts
from volta_doctor.facts.nvml import value
from volta_doctor.facts.pci import bus_id
from volta_doctor.profile import is_volta


class Cards:
    """The GPUs by bus id, as NVML, PCI and the kernel log know them."""

    def __init__(self, facts: Facts) -> None:
        nvml, pci = facts.nvml.data, facts.pci.data
        log = facts.kernel_log.data
        self.names = uuids(log) if log else {}
        self.others: set[str] = set()
        gpus = nvml.gpus if nvml else []
        on_bus = [gpu.bus_id for gpu in pci.gpus] if pci else []
        if len(on_bus) == len(gpus):  # NVML counts in the order of the bus
            self.names |= {bus: subject(gpu) for bus, gpu in zip(on_bus, gpus, strict=True)}
        if pci:
            self.others = {gpu.bus_id for gpu in pci.gpus if not is_volta(gpu)}
        for gpu in gpus:
            if bus := value(gpu.pci.bus_id):
                self.names[bus_id(bus)] = subject(gpu)
                if value(gpu.compute_capability) not in (None, compat().volta.compute_capability):
                    self.others.add(bus_id(bus))

    def subject(self, bus: str) -> str:
        """Name the GPU at a bus id as other checks do, else by that id."""
        return self.names.get(bus, bus)

    def is_other(self, bus: str) -> bool:
        """Say whether the card there is known to be of another generation than Volta."""
        return bus in self.others
