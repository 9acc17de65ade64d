"""Is the right driver loaded, and do its user-space side and the cards' firmware fit it?"""

import re
from collections.abc import Iterable

from volta_doctor.catalog import Row, compat
from volta_doctor.checks.environments import each_env
from volta_doctor.checks.gpu import gpus, shown, subject, unopened, unsupported
from volta_doctor.checks.registry import check
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.modules import LIBRARY, PROC_VERSION, ModulesFacts, parse_version
from volta_doctor.facts.nvml import NvmlFacts, errors, value
from volta_doctor.facts.packages import branch_of_version
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import few

# nvmlReturn_t (nvml.h)
_NOT_LOADED, _NO_LIBRARY, _FUNCTION_NOT_FOUND, _MISMATCH = 9, 12, 13, 18

_GSP_REFUSAL = r"NVRM:.*not supported by open"


def version_line(modules: ModulesFacts) -> Evidence:
    """The first line of /proc/driver/nvidia/version, or its absence."""
    text = modules.proc_version
    return Evidence(PROC_VERSION, text.splitlines()[0] if text else "absent", 1 if text else None)


def init_result(nvml: NvmlFacts) -> Evidence:
    """What nvmlInit returned, or that nvidia-smi stands in for it."""
    error = nvml.init_error
    if nvml.problem:
        return Evidence(nvml.source, f"answers where NVML does not: {nvml.problem}")
    return Evidence("nvmlInit", str(error) if error else "0 (success)")


@check("driver-loaded")
def driver_loaded(facts: Facts, row: Row) -> Finding:
    """A library without a module, and a module without a library, fail alike."""
    modules, nvml = facts.modules.need(), facts.nvml.need()
    seen = (version_line(modules), init_result(nvml))
    code = nvml.init_error.error if nvml.init_error else 0
    host = facts.host.data
    hint = ""
    if host and host.container:
        hint = f" This is a container ({host.container}): pass the GPUs to it (docker: --gpus all)."
    on_disk = modules.module_for(modules.running_kernel)
    if modules.proc_version is None and on_disk and on_disk.file:
        text = f"Module {on_disk.version} is on disk, but not loaded (try modprobe nvidia)."
        return row.fail(text, *seen, Evidence(f"modinfo {on_disk.file}", f"{on_disk.version}"))
    if modules.proc_version is None:
        return row.fail(f"No NVIDIA kernel module is loaded.{hint}", *seen)
    loaded = f"Module {modules.loaded_version} is loaded"
    if code == _NO_LIBRARY:
        return row.fail(f"{loaded}, but {LIBRARY} is not found.{hint}", *seen)
    if code == _NOT_LOADED:
        return row.fail(f"{loaded}, yet NVML cannot reach it (9, driver not loaded).{hint}", *seen)
    if code not in (0, _MISMATCH):
        return row.unknown(f"{loaded}, but nvmlInit fails: {seen[1].text}.", *seen)
    return row.ok(f"{loaded}.", *seen)


@check("driver-lib-match")
def driver_lib_match(facts: Facts, row: Row) -> Finding:
    """After an upgrade without a reboot the old module meets the new library."""
    modules, nvml = facts.modules.need(), facts.nvml.need()
    seen = [version_line(modules), init_result(nvml)]
    # NVML's own word comes first: a host may have several such files, for other ABIs too.
    theirs = parse_version(value(nvml.nvml_version) or "")
    if theirs:
        seen.append(Evidence("nvmlSystemGetNVMLVersion", theirs))
    elif modules.libraries:
        library = modules.libraries[0]
        theirs = library.version
        seen.append(Evidence(library.path, f"version {theirs}"))
    smi = facts.smi.data
    said = smi.output if smi and "Driver/library version mismatch" in smi.output else ""
    if said:
        seen.append(Evidence("nvidia-smi", said))
    mismatch = nvml.init_error is not None and nvml.init_error.error == _MISMATCH
    ours = modules.loaded_version
    if ours and theirs and ours != theirs:
        return row.fail(f"The loaded module is {ours}, the library {theirs}.", *seen)
    if mismatch or said:
        return row.fail("The library says that the loaded module is of another version.", *seen)
    if ours is None:
        return row.unknown("No NVIDIA kernel module is loaded to compare with.", *seen)
    if theirs is None:
        return row.unknown(f"The version of {LIBRARY} is nowhere to be found.", *seen)
    return row.ok(f"Module and library are {ours}.", *seen)


@check("driver-branch")
def driver_branch(facts: Facts, row: Row) -> Finding:
    """Judge the loaded driver, or where none is loaded the one on disk."""
    version, seen = _driver(facts.modules.need())
    last, branch = compat().driver.last_branch, branch_of_version(version)
    if branch is None:
        return row.unknown(f"The driver version {version} names no branch.", seen)
    if branch > last:
        return row.fail(
            f"Driver {version}: branch {branch} no longer supports Volta; {last} is the last.", seen
        )
    if branch < last:
        ends = {b.branch: b.ends for b in compat().driver.branches}.get(branch)
        until = f", which ended in {ends}" if ends else ""
        return row.warn(
            f"Driver {version} is from branch {branch}{until}; {last} is the last.", seen
        )
    return row.ok(f"Driver {version}.", seen)


def _driver(modules: ModulesFacts) -> tuple[str, Evidence]:
    """Return the version of the loaded driver, else of the one on disk. Raises Missing."""
    if modules.loaded_version:
        return modules.loaded_version, version_line(modules)
    on_disk = modules.module_for(modules.running_kernel)
    if on_disk and on_disk.version:
        return on_disk.version, Evidence(f"modinfo {on_disk.file}", on_disk.version)
    raise Missing("No NVIDIA kernel module is loaded or on disk.")


@check("driver-cuda")
def driver_cuda(facts: Facts, row: Row) -> Iterable[Finding]:
    """A driver that is too old for a CUDA runtime refuses it with error 35."""
    version, seen = _driver(facts.modules.need())
    branch = branch_of_version(version)

    def judge(env: PythonEnv) -> Finding:
        wants = _cuda_wanted(facts, env)
        if not wants:
            return row.skip("Nothing in it asks for a CUDA runtime.", subject=env.prefix)
        major = max(wants)
        least = compat().cuda_majors.least_driver.get(major)
        if least is None or branch is None:
            text = f"Driver {version} or CUDA {major} is not in the table."
            return row.unknown(text, seen, wants[major], subject=env.prefix)
        asked = f"{wants[major].text}, which asks for a driver from {least} on"
        if branch < least:
            text = f"Driver {version} is too old for {asked}."
            return row.fail(text, seen, wants[major], subject=env.prefix)
        return row.ok(f"Driver {version} is new enough for {asked}.", seen, subject=env.prefix)

    return each_env(facts, row, judge)


def _cuda_wanted(facts: Facts, env: PythonEnv) -> dict[int, Evidence]:
    """Return the major versions of CUDA that an environment was built for, with what asks."""
    found: dict[int, Evidence] = {}
    for item in facts.so_archs.data.objects if facts.so_archs.data else []:
        match = re.match(r"libcudart\.so\.(\d+)", item.runtime or "")
        if match and item.env == env.prefix:
            name = item.path.rsplit("/", 1)[-1]
            found[int(match[1])] = Evidence(item.path, f"{name} (links {item.runtime})")
    if match := re.match(r"\d+", env.torch_cuda or ""):
        text = f"torch {env.torch} for CUDA {env.torch_cuda}"
        found[int(match[0])] = Evidence(f"torch/version.py in {env.prefix}", text)
    return found


@check("driver-open-kmod")
def driver_open_kmod(facts: Facts, row: Row) -> Finding:
    """The log counts only while no proprietary module is loaded: it keeps what has been mended."""
    modules = facts.modules.need()
    on_disk = modules.on_disk or []
    seen = [version_line(modules)]
    seen += [Evidence(f"modinfo {m.file}", f"license: {m.license}") for m in on_disk if m.file]
    if modules.loaded_open:
        return row.fail("The loaded module is the open flavour, which cannot drive Volta.", *seen)
    for module in on_disk:
        if module.license not in (None, "NVIDIA"):
            text = f"The module on disk for kernel {module.kernel} is the open flavour"
            return row.fail(f"{text} (license {module.license}).", *seen)
    log = facts.kernel_log.data
    refusals = log.matching(_GSP_REFUSAL) if log and not modules.proc_version else []
    if log and refusals:
        number, line = refusals[-1]
        seen.append(Evidence(log.source, line.text, number))
        return row.fail("The kernel log says that the open module refused a GPU.", *seen)
    kernels = facts.dkms.data.kernels if facts.dkms.data else []
    unseen = on_disk and any(modules.module_for(kernel) is None for kernel in kernels[:1])
    if unseen or any(module.file and module.license is None for module in on_disk):
        return row.unknown("The license of a module on disk was not recorded.", *seen)
    if not any(module.file for module in on_disk) and not modules.proc_version:
        return row.unknown("No NVIDIA kernel module is loaded or on disk.", *seen)
    return row.ok("The module is NVIDIA's proprietary flavour.", *seen)


@check("nvml-abi")
def nvml_abi(facts: Facts, row: Row) -> Finding:
    """A binding for another branch calls functions that are not there or misreads structures."""
    nvml, pid_max = facts.nvml.need(), facts.processes.need().pid_max
    if nvml.problem:
        text = f"NVML cannot be asked; what is known of the GPUs is from {nvml.source}."
        return row.warn(text, Evidence("NVML", nvml.problem))
    lacking = (path for path, error in errors(nvml) if error.error == _FUNCTION_NOT_FOUND)
    # gpus.0.ecc.current and gpus.1.ecc.current are one function
    missing = list(dict.fromkeys(re.sub(r"\b\d+\b", "N", path) for path in lacking))
    wild = [
        process.pid
        for gpu in gpus(facts)
        for reading in (gpu.compute_processes, gpu.graphics_processes)
        for process in value(reading) or []
        if process.pid > pid_max
    ]
    versions = f"NVML {shown(nvml.nvml_version)}, driver {shown(nvml.driver_version)}"
    seen = Evidence("NVML", versions)
    if missing:
        text = f"NVML lacks functions that the binding calls, for: {few(missing, 5)}."
        return row.warn(text, seen)
    if wild:
        text = f"A process list holds pid {wild[0]}, above kernel.pid_max {pid_max}."
        return row.warn(text, seen, Evidence("/proc/sys/kernel/pid_max", str(pid_max)))
    return row.ok(f"Binding and library agree ({versions}).", seen)


@check("vbios-mix")
def vbios_mix(facts: Facts, row: Row) -> Iterable[Finding]:
    """Compare GPUs of one board part number with each other only."""
    by_part: dict[str, dict[str, list[str]]] = {}
    for gpu in gpus(facts):
        part, vbios = value(gpu.part_number), value(gpu.vbios)
        if gpu.handle_error:
            yield unopened(row, gpu)
            continue
        if unsupported(gpu.part_number):
            yield row.skip("This card has no board part number.", subject=subject(gpu))
            continue
        if part is None or vbios is None:
            text = f"part number {shown(gpu.part_number)}, VBIOS {shown(gpu.vbios)}"
            yield row.unknown(f"NVML does not tell: {text}.", subject=subject(gpu))
            continue
        by_part.setdefault(part, {}).setdefault(vbios, []).append(subject(gpu))
    for part, by_vbios in by_part.items():
        seen = [Evidence("NVML", f"{vbios}: {', '.join(g)}") for vbios, g in by_vbios.items()]
        if len(by_vbios) > 1:
            text = f"Part {part} runs {len(by_vbios)} VBIOS versions: {', '.join(by_vbios)}."
            yield row.warn(text, *seen, subject=f"part {part}")
        else:
            yield row.ok(f"VBIOS {next(iter(by_vbios))}.", *seen, subject=f"part {part}")
