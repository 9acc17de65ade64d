"""Is the driver kept loaded, and may the server use the GPU?"""

from volta_doctor.catalog import Row
from volta_doctor.checks.gpu import per_gpu, seen, setting, told
from volta_doctor.checks.registry import check
from volta_doctor.checks.steps import enable
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.nvml import GpuFacts
from volta_doctor.findings import Finding

_DAEMON = "nvidia-persistenced"
_MPS_DAEMON = "nvidia-cuda-mps-control"
# The numbers that nvidia-smi -c takes, by NVML's names; the second was dropped with CUDA 8.
_COMPUTE_MODES = {
    "default": 0,
    "exclusive_thread": 1,
    "prohibited": 2,
    "exclusive_process": 3,
}


@check("persistence")
@per_gpu
def persistence(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """Without it the driver unloads a card's state with its last client, and its settings too."""
    evidence = seen(facts, f"persistence mode {told(gpu.persistence, 'persistence mode')}")
    if gpu.persistence:
        return row.ok("Persistence mode is on.", evidence)
    host, processes = facts.host.data, facts.processes.data
    if processes and any(process.name == _DAEMON for process in processes.tools):
        text = f"Persistence mode is off, although {_DAEMON} runs: see the options of its unit."
        return row.warn(text, evidence)
    steps = [enable(_DAEMON)] if host and not host.container else []
    return row.warn("Persistence mode is off.", evidence, steps=steps)


@check("compute-mode")
@per_gpu
def compute_mode(facts: Facts, row: Row, gpu: GpuFacts) -> Finding:
    """The mode says how many processes may use a GPU: any, one, or none."""
    mode = told(gpu.compute_mode, "compute mode")
    evidence = seen(facts, f"compute mode {mode}")
    if mode not in _COMPUTE_MODES:
        raise Missing(f"NVML names a compute mode {mode!r} that this volta-doctor does not know.")
    steps = setting(facts, gpu, ("-c", "0"), ("-c", str(_COMPUTE_MODES[mode])))
    if mode == "default":
        return row.ok("The compute mode is Default.", evidence)
    if mode == "prohibited":
        return row.fail(
            "The compute mode is Prohibited: no process may use it.", evidence, steps=steps
        )
    if any(process.name == _MPS_DAEMON for process in facts.processes.need().tools):
        return row.ok("One process at a time may use it, and MPS shares that one.", evidence)
    text = "Only one process at a time may use it, and no MPS daemon shares that one."
    return row.warn(text, evidence, steps=steps)
