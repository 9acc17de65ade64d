"""Will the kernel load the module, now and at the next boot, and is it well itself?"""

from collections.abc import Iterable

from volta_doctor.catalog import Row
from volta_doctor.checks.log import clean, kernel_log, times, window
from volta_doctor.checks.registry import check
from volta_doctor.facts.kernel_log import BOOT_LINES_S
from volta_doctor.facts.model import Facts, Missing
from volta_doctor.facts.modules import KernelModule
from volta_doctor.facts.pci import DEVICES
from volta_doctor.findings import Evidence, Finding
from volta_doctor.words import duration

_KEY_REJECTED = r"nvidia.*[Kk]ey was rejected|[Kk]ey was rejected.*nvidia"
_BLOCKED = r"blocked for more than"


def module_evidence(module: KernelModule) -> Evidence:
    """What lies on disk for one kernel."""
    if module.file is None:
        return Evidence(f"/lib/modules/{module.kernel}/modules.dep", "no nvidia module")
    return Evidence(f"modinfo {module.file}", f"version {module.version}")


@check("kmod-next-boot")
def kmod_next_boot(facts: Facts, row: Row) -> Finding:
    """A kernel update without a rebuilt module strands the card at the next boot."""
    modules, dkms = facts.modules.need(), facts.dkms.need()
    if not modules.on_disk:
        raise Missing("/lib/modules holds no kernel's modules, as in a container.")
    running = modules.module_for(modules.running_kernel)
    container = facts.host.data and facts.host.data.container
    if container and (running is None or running.file is None):
        raise Missing(f"This is a container ({container}): its kernel's modules are on the host.")
    newest = modules.module_for(dkms.kernels[0]) if dkms.kernels else None
    seen = [module_evidence(module) for module in modules.on_disk]
    if dkms.added:
        built = ", ".join(f"{b.version} for {b.kernel}" for b in dkms.builds) or "nothing"
        seen.append(Evidence("/var/lib/dkms", f"knows {', '.join(dkms.added)}; built {built}"))
    if running is None or running.file is None:
        kernel = modules.running_kernel
        return row.fail(f"No nvidia module is on disk for the running kernel {kernel}.", *seen)
    if newest is None or running.version is None or (newest.file and newest.version is None):
        return row.unknown("The newest kernel's module or a module's version is not known.", *seen)
    if newest.file is None:
        return row.warn(
            f"No nvidia module is on disk for the newest kernel {newest.kernel}.", *seen
        )
    if newest.version != running.version:
        return row.warn(
            f"The next boot changes the driver from {running.version} to {newest.version}"
            f" (kernel {newest.kernel}).",
            *seen,
        )
    if modules.loaded_version and modules.loaded_version != running.version:
        return row.warn(
            f"The next boot changes the driver from {modules.loaded_version} (loaded)"
            f" to {running.version}.",
            *seen,
        )
    return row.ok(f"Module {running.version} is there for {newest.kernel}.", *seen)


@check("nouveau")
def nouveau(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """Nouveau holds the card, so that the NVIDIA module cannot have it."""
    cards = facts.pci.need().gpus
    held = [card for card in cards if card.driver == "nouveau"]
    if held:
        return [
            row.fail(
                "nouveau is bound to it.",
                Evidence(f"{DEVICES}/{card.bus_id}/driver", "nouveau"),
                subject=card.bus_id,
            )
            for card in held
        ]
    seen = [Evidence(f"{DEVICES}/{card.bus_id}/driver", card.driver or "none") for card in cards]
    return row.ok("No NVIDIA card is bound to nouveau.", *seen)


@check("secure-boot")
def secure_boot(facts: Facts, row: Row) -> Finding:
    """A loaded module has been accepted; only one that is not loaded can have been refused."""
    host, modules = facts.host.need(), facts.modules.need()
    state = Evidence("/sys/firmware/efi", host.secure_boot_hint)
    if modules.proc_version:
        return row.ok("The NVIDIA module is loaded, so it was accepted.", state)
    if host.secure_boot is None:
        return row.unknown(f"Secure Boot: {host.secure_boot_hint}.", state)
    if not host.secure_boot:
        return row.ok("Secure Boot is off.", state)
    log = facts.kernel_log.data
    if log and (rejected := log.matching(_KEY_REJECTED)):
        number, line = rejected[-1]
        seen = Evidence(log.source, line.text, number)
        return row.fail("Secure Boot is on and the kernel rejected the module's key.", state, seen)
    on_disk = modules.module_for(modules.running_kernel)
    if on_disk is None or on_disk.file is None:
        return row.unknown("Secure Boot is on, but no nvidia module is on disk to judge.", state)
    signer = Evidence(f"modinfo {on_disk.file}", f"signer: {on_disk.signer or 'none'}")
    if on_disk.signer is None:
        return row.fail("Secure Boot is on and the module on disk is not signed.", state, signer)
    if host.enrolled_keys is None:
        return row.unknown("The kernel's keys cannot be read: run again with sudo.", state, signer)
    if not any(on_disk.signer in key for key in host.enrolled_keys):
        text = f"Secure Boot is on and the module's signer {on_disk.signer} is not enrolled."
        return row.fail(text, state, signer)
    return row.unknown("Secure Boot trusts the module, yet it is not loaded.", state, signer)


@check("iommu")
def iommu(facts: Facts, row: Row) -> Finding:
    """On bare metal a translating IOMMU breaks or slows copies between GPUs."""
    host = facts.host.need()
    if not host.cmdline:
        raise Missing("The kernel's command line was not recorded.")
    # an option may hold several values: intel_iommu=on,sm_on
    options = [option.partition("=") for option in host.cmdline.split()]
    values = {f"{name}={value}" for name, _, given in options for value in given.split(",")}
    turned_on = sorted(values & {"intel_iommu=on", "amd_iommu=on"})
    seen = Evidence("/proc/cmdline", host.cmdline)
    if not turned_on:
        return row.ok("The command line does not turn the IOMMU on.", seen)
    if values & {"iommu=pt", "iommu.passthrough=1"}:
        return row.ok("The IOMMU is in passthrough mode.", seen)
    if host.virtual is None:
        return row.unknown(f"Bare metal or virtual? {host.virtual_hint}.", seen)
    where = Evidence("/proc/cpuinfo", host.virtual_hint)
    if host.virtual:
        return row.ok("A virtual machine: the IOMMU is its host's.", seen, where)
    return row.warn(f"Bare metal with {turned_on[0]} and without iommu=pt.", seen, where)


@check("log-readable")
def log_readable(facts: Facts, row: Row) -> Finding:
    """An unreadable log is no clean log: then this check and its kin are unknown."""
    log = kernel_log(facts)
    oldest, lines = log.begins, len(log.lines) + log.left_out
    seen = Evidence(log.source, f"{lines} lines, the oldest {oldest:.0f} s after boot")
    if oldest > BOOT_LINES_S:
        return row.info(f"The lines of the first {duration(oldest)} after boot are lost.", seen)
    return row.ok("The log reaches back to the boot.", seen)


@check("hung-task")
def hung_task(facts: Facts, row: Row) -> Finding | Iterable[Finding]:
    """A process stuck in the driver cannot be killed; only a reboot frees the GPU."""
    processes, log = facts.processes.need(), kernel_log(facts)
    stuck = [user for user in processes.gpu_users if user.stuck and user.devices]
    if stuck:
        return [
            row.fail(
                f"{user.name} is stuck in the kernel with a GPU open.",
                Evidence(f"/proc/{user.pid}/fd", ", ".join(user.devices or [])),
                subject=f"pid {user.pid}",
            )
            for user in stuck
        ]
    if blocked := log.matching(_BLOCKED):
        number, line = blocked[-1]
        text = f"The kernel reported {times(len(blocked))} that a task hung, {window(log)}."
        return row.warn(text, Evidence(log.source, line.text, number))
    veiled = [user for user in processes.gpu_users if user.stuck]
    if veiled:
        pids = ", ".join(str(user.pid) for user in veiled)
        return row.unknown(
            f"Stuck processes (pid {pids}) hide their open files: run again with sudo."
        )
    return row.ok(f"No task is stuck, and none was {clean(facts)}.")
