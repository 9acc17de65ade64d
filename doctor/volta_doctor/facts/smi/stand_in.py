"""Where NVML could not be asked (a binding that is broken or blocked), nvidia-smi may answer."""

from msgspec import structs

from volta_doctor.facts import smi, topo
from volta_doctor.facts.model import Section
from volta_doctor.facts.nvml import NvmlFacts
from volta_doctor.facts.topo import TopoFacts
from volta_doctor.probe import CannotLook, Probe


def for_nvml(probe: Probe, section: Section[NvmlFacts]) -> Section[NvmlFacts]:
    """Return nvidia-smi's facts of the GPUs where NVML could not be asked and nvidia-smi could."""
    failed = section.data.init_error if section.data else None
    if section.data and not failed:
        return section
    try:
        facts = probe.once(smi.ask).nvml
    except CannotLook:
        return section
    if facts is None or not facts.gpus:
        return section
    problem = section.error or (f"nvmlInit: {failed.text} ({failed.error})" if failed else "")
    version = section.data.nvml_version if section.data else None
    facts = structs.replace(facts, problem=problem, nvml_version=version)
    return Section(ok=True, seconds=section.seconds, data=facts)


def for_topo(probe: Probe, section: Section[TopoFacts]) -> Section[TopoFacts]:
    """Return nvidia-smi's matrices where NVML does not give them, unless nvidia-smi hangs too."""
    if section.ok or _hangs(probe):
        return section
    try:
        facts = topo.from_smi(probe)
    except CannotLook as reason:
        return structs.replace(section, error=f"{section.error}; {reason}")
    return Section(ok=True, seconds=section.seconds, data=facts)


def _hangs(probe: Probe) -> bool:
    try:
        return probe.once(smi.ask).facts.timed_out
    except CannotLook:
        return False
