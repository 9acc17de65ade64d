"""The `modules` section: the loaded NVIDIA module, those on disk, and libnvidia-ml.so.1."""

import re
import sysconfig

import msgspec

from volta_doctor.probe import CannotLook, Probe

PROC_VERSION = "/proc/driver/nvidia/version"
LIBRARY = "libnvidia-ml.so.1"
_MODINFO_S = 2.0
_MODPROBE_DIRECTORIES = ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")


class KernelModule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The NVIDIA module built for one kernel; without a `file` there is none."""

    kernel: str
    file: str | None = None
    version: str | None = None
    license: str | None = None
    signer: str | None = None


class Library(msgspec.Struct, frozen=True, kw_only=True):
    """One libnvidia-ml.so.1, and the version in the name of the file it leads to."""

    path: str
    version: str | None


class ModulesFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Modules and their user-space side.

    `proc_version` is the text of /proc/driver/nvidia/version, None where no module is loaded.
    `on_disk` covers the running and the newest kernel; it is None where /lib/modules is not to be
    seen, as in a container. `libraries` come in the order in which the loader finds them.
    """

    running_kernel: str
    loaded: list[str] = []
    proc_version: str | None = None
    on_disk: list[KernelModule] | None = None
    libraries: list[Library] = []

    @property
    def loaded_version(self) -> str | None:
        """The driver version of the loaded module."""
        return parse_version(self.proc_version or "")

    @property
    def loaded_open(self) -> bool:
        """Whether the loaded module calls itself the open flavour."""
        return "Open Kernel" in (self.proc_version or "")

    def module_for(self, kernel: str) -> KernelModule | None:
        """The module on disk for a kernel, None where that kernel was not looked at."""
        return next((m for m in self.on_disk or [] if m.kernel == kernel), None)


def parse_version(text: str) -> str | None:
    """Return the driver version in a version line; NVIDIA has reworded that line three times."""
    match = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", text)
    return match[0] if match else None


def loaded_modules(probe: Probe) -> list[str]:
    """Return the NVIDIA and nouveau modules that are loaded; what is built in has no initstate."""
    names = [name for name in probe.names("/sys/module") if name.startswith(("nvidia", "nouveau"))]
    return [name for name in names if probe.exists(f"/sys/module/{name}/initstate")]


def parse_modinfo(text: str) -> dict[str, str]:
    """Return modinfo's fields; of a repeated field the first."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def kernel_order(release: str) -> list[tuple[int, str]]:
    """Return a key that sorts kernel releases by their numbers: 6.1.0-9 before 6.1.0-28."""
    return [
        (int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"[.\-+_]", release)
    ]


def installed_kernels(probe: Probe) -> list[str]:
    """Return the kernels that are installed with their modules, newest first.

    modules.builtin comes with the kernel itself; modules.dep is also made where there are only
    headers and what DKMS has built with them.
    """
    needed = ("modules.dep", "modules.builtin")
    found = [
        kernel
        for kernel in probe.names("/lib/modules")
        if all(probe.exists(f"/lib/modules/{kernel}/{name}") for name in needed)
    ]
    return sorted(found, key=kernel_order, reverse=True)


def module_name(probe: Probe) -> str:
    """Return the name of the module that `modprobe nvidia` loads.

    Debian lets several lie side by side (nvidia-current, nvidia-current-open, nvidia-tesla-535)
    and chooses by an `install` line.
    """
    for directory in _MODPROBE_DIRECTORIES:
        for name in probe.names(directory):
            text = probe.text_or_none(f"{directory}/{name}") or ""
            if match := re.search(r"^install nvidia modprobe -i (\S+)", text, re.MULTILINE):
                return match[1]
    return "nvidia"


def read_module(probe: Probe, kernel: str, name: str) -> KernelModule:
    """Find the NVIDIA module of one kernel and ask modinfo about it."""
    dependencies = probe.text_or_none(f"/lib/modules/{kernel}/modules.dep") or ""
    match = re.search(rf"^(\S*/{re.escape(name)}\.ko\S*):", dependencies, re.MULTILINE)
    if not match:
        return KernelModule(kernel=kernel)
    # modules.dep gives paths under the kernel's own directory, or absolute ones.
    file = match[1] if match[1].startswith("/") else f"/lib/modules/{kernel}/{match[1]}"
    done = probe.run("modinfo", file, limit=_MODINFO_S)
    if done.exit_code != 0:
        raise CannotLook(f"modinfo {file}: {done.complaint}")
    fields = parse_modinfo(done.stdout)
    return KernelModule(
        kernel=kernel,
        file=file,
        version=fields.get("version"),
        license=fields.get("license"),
        signer=fields.get("signer"),
    )


def library_directories(probe: Probe) -> list[str]:
    """Return the directories in which the loader may find the library, in its order."""
    directories = probe.env.get("LD_LIBRARY_PATH", "").split(":")
    for name in probe.names("/etc/ld.so.conf.d"):
        lines = probe.text(f"/etc/ld.so.conf.d/{name}").splitlines()
        directories += [line.strip() for line in lines if line.startswith("/")]
    multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
    directories += [f"/lib/{multiarch}", f"/usr/lib/{multiarch}", "/lib64", "/usr/lib64"]
    directories += ["/lib", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"]
    return list(dict.fromkeys(d for d in directories if d.startswith("/")))


def find_libraries(probe: Probe) -> list[Library]:
    """Return every libnvidia-ml.so.1, each real file once."""
    found: dict[str, Library] = {}
    for directory in library_directories(probe):
        path = f"{directory}/{LIBRARY}"
        if probe.exists(path) or probe.link(path):
            real = probe.resolve(path)
            name = real.rsplit("/", 1)[-1]
            found.setdefault(name, Library(path=real, version=parse_version(name)))
    return list(found.values())


def collect(probe: Probe) -> ModulesFacts:
    """Read what is loaded, what would be loaded, and what programs would link to."""
    running = probe.text("/proc/sys/kernel/osrelease").strip()
    kernels = probe.once(installed_kernels)
    name = module_name(probe)
    looked_at = dict.fromkeys([running, *kernels[:1]])
    return ModulesFacts(
        running_kernel=running,
        loaded=loaded_modules(probe),
        proc_version=probe.text_or_none(PROC_VERSION),
        on_disk=[read_module(probe, kernel, name) for kernel in looked_at] if kernels else None,
        libraries=find_libraries(probe),
    )
