"""The NVIDIA kernel module: /proc/driver/nvidia/version, modinfo, and what the log says of it."""

import re
from collections.abc import Iterator

from volta_doctor.facts.model import Facts
from volta_doctor.facts.modules import KernelModule, ModulesFacts
from volta_doctor.logs.parts import Part, Seen, section
from volta_doctor.logs.readers import reader
from volta_doctor.logs.text import Text

_LOADED = re.compile(r"NVIDIA UNIX .{0,40}Kernel Module\b.{0,40}?\b(\d{3}\.\d+(?:\.\d+)?)\b")
_FILE = re.compile(r"^filename:\s*(\S*/nvidia[\w-]*\.ko\S*)")
_FIELD = re.compile(r"^(version|license|signer):\s+(\S.*)$")
_KERNEL = re.compile(r"/lib/modules/([^/]+)/")
_LSMOD = re.compile(r"^(nvidia\w*|nouveau)\s+\d{4,}\s+\d+(?:\s|$)")


@reader("Kernel Module", "filename:", "nvidia.ko", "nouveau", "nvidia_uvm", after=20)
def kernel_modules(text: Text) -> Iterator[Part]:
    """Yield the module that is loaded, and those on disk."""
    proc_version: str | None = None
    on_disk: list[dict[str, str]] = []
    loaded: dict[str, None] = {}
    seen: list[Seen] = []
    inside = False
    for line in text.lines:
        body, words = line.body, ""
        if match := _LOADED.search(line.text):
            proc_version = proc_version or body
            words = match[1]
        elif match := _FILE.match(body):
            kernel = _KERNEL.search(match[1])
            on_disk.append({"kernel": kernel[1] if kernel else "", "file": match[1]})
            inside, words = True, match[1]
        elif inside and (match := _FIELD.match(body)):
            on_disk[-1].setdefault(match[1], match[2])
            words = match[2]
        elif match := _LSMOD.match(body):
            loaded[match[1]] = None
        elif not body:
            inside = False
        if words:
            seen.append(Seen("modules", words, text.evidence(line)))
    if not (proc_version or on_disk or loaded):
        return
    facts = ModulesFacts(
        running_kernel=on_disk[0]["kernel"] if on_disk else "",
        loaded=list(loaded),
        proc_version=proc_version,
        on_disk=[KernelModule(**fields) for fields in on_disk] or None,
    )
    judges = ("driver-branch", "driver-open-kmod", "driver-cuda") if proc_version or on_disk else ()
    yield Part(Facts(modules=section(facts)), judges, seen)
