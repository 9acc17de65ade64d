#!/usr/bin/python
# Apache-2.0 (see LICENSE)
"""Which driver packages a host has and should have, and what stands in the way. Reads only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: volta_driver
short_description: Compare a host's NVIDIA packages with the driver wanted
description:
  - Looks at packages, holds and files, and changes nothing.
  - Asks apt for versions, and has it simulate the install, only where one is due.
options:
  branch:
    description: The driver branch to be on.
    type: int
    required: true
  version:
    description: The exact version; empty keeps what is installed of the branch, else the newest.
    type: str
    default: ""
  flavour:
    description: The kernel modules wanted, proprietary or open.
    type: str
    default: proprietary
  catalogue:
    description: C(driver) of compat.yaml, with C(last_branch), C(flavour) and C(branches).
    type: dict
    required: true
  packages:
    description: Packages to install, the one with the kernel module first.
    type: list
    elements: str
    required: true
  kernels:
    description: Kernels that need a module, the running one first.
    type: list
    elements: str
    required: true
  headers:
    description: What stands before a kernel's release in the name of its headers' package.
    type: str
    default: linux-headers-
  files:
    description: Content by path of the files to be there. C(@VERSION@) stands for the version.
    type: dict
    default: {}
  pin:
    description: Which of the files pins the version; where it is, holds are Volta's own.
    type: str
    default: ""
  repository:
    description: The repository's address, which no other source may name; empty for none.
    type: str
    default: ""
  fresh:
    description: >-
      Whether apt's lists were read just now, so that what is not in them is a problem, and a
      simulated install tells.
    type: bool
    default: false
author: ["Volta (!UNKNOWN)"]
"""
EXAMPLES = r"""
- name: Look at the driver
  volta_driver:
    branch: 580
    catalogue: "{{ compat.driver }}"
    packages: [nvidia-kernel-dkms, nvidia-driver-cuda]
    kernels: ["{{ host.kernel.running }}", "{{ host.kernel.next }}"]
  register: driver
"""
RETURN = r"""
problems:
  description: What must be put right by hand before anything is changed.
  type: list
  elements: str
  returned: always
todo:
  description: >-
    Sentences by what is not as it should be: write, packages, hold.
  type: dict
  returned: always
wanted:
  description: The version to be on, empty where the lists of packages do not yet tell.
  type: str
  returned: always
stale:
  description: Content by path of the files to write.
  type: dict
  returned: always
install:
  description: Packages to install in one transaction, each with its version where it is known.
  type: list
  elements: str
  returned: always
hold:
  description: Driver packages that are not held.
  type: list
  elements: str
  returned: always
broken:
  description: Packages that an earlier run left half-installed, each with its state.
  type: list
  elements: str
  returned: always
"""

import datetime
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

# Parts of the driver by name: container tools, CUDA toolkits and pinning packages are not.
DRIVER = re.compile(
    r"^((lib)?nvidia-(?!container|driver-pinning|cuda-toolkit|fs)|libcuda1|cuda-drivers"
    r"|xserver-xorg-video-nvidia|firmware-nvidia|linux-(modules|objects|signatures)-nvidia"
    r"|kmod-nvidia)"
)


class Package(NamedTuple):
    """An installed package: `state` is dpkg's, `installed` where all is well."""

    version: str
    held: bool = False
    state: str = "installed"


def upstream(version: str) -> str:
    """Return the driver version in a package's: 580.95.05 of 3:580.95.05-1."""
    return version.split(":", 1)[-1].split("-", 1)[0]


def branch_of(version: str) -> int | None:
    """Return the branch of a package's version, None where it has none (18.04, 1.17.8-1)."""
    found = re.match(r"(\d{3})\.", upstream(version))
    return int(found[1]) if found else None


def order(version: str) -> list[int]:
    """Return a key that sorts driver versions and their revisions."""
    return [int(number) for number in re.findall(r"\d+", version.split(":", 1)[-1])]


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def run(*command: str) -> tuple[int, str]:
    """Return a command's exit code, 127 where it is not there, and what it said."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return 127, ""
    return done.returncode, done.stdout


def parse_status(text: str) -> dict[str, Package]:
    """Return all packages in dpkg's status file that are not merely remembered."""
    found = {}
    for paragraph in text.split("\n\n"):
        fields = dict(re.findall(r"^(Package|Status|Version): (.+)$", paragraph, re.MULTILINE))
        want, _, state = fields.get("Status", "").partition(" ")
        state = state.rpartition(" ")[2]
        if "Version" in fields and state not in ("config-files", "not-installed"):
            found[fields["Package"]] = Package(fields["Version"], want == "hold", state)
    return found


def parse_rpm(text: str, locks: str) -> dict[str, Package]:
    """Return the packages of `rpm -qa` (name version); a line of versionlock.list is a hold."""
    pairs = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    return {name: Package(version, upstream(version) in locks) for name, version in pairs}


def parse_madison(text: str) -> dict[str, list[str]]:
    """Return the versions by package of `apt-cache madison`, the newest first."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, rest = (part.strip() for part in line.partition("|"))
        version = rest.split("|")[0].strip()
        if version and version not in found.setdefault(name, []):
            found[name].append(version)
    return {name: sorted(versions, key=order, reverse=True) for name, versions in found.items()}


def choose(branch: int, version: str, installed: str, offered: list[str]) -> str:
    """Return the driver version to be on: the one named, the one here, or the newest offered."""
    if version:
        return version
    if branch_of(installed) == branch:
        return upstream(installed)
    return next((upstream(v) for v in offered if branch_of(v) == branch), "")


def pick(name: str, branch: int, wanted: str, offered: list[str]) -> tuple[str, str]:
    """Return (version, problem) of one package: some tools have version numbers of their own."""
    own = [v for v in offered if branch_of(v) == branch]
    exact = [v for v in own if upstream(v) == wanted]
    if exact or own:
        return (exact or own)[0], ""
    others = sorted({b for b in map(branch_of, offered) if b})
    if not others:
        return "", f"{name} is in no package list of this host."
    named = re.search(r"-(\d{3})(?=-|$)", name)
    kind = "a transitional package, which jumps branch: it " if named else ""
    return "", (
        f"{name} is {kind}comes as {', '.join(offered[:3])} (branch"
        f" {' and '.join(map(str, others))}), not of branch {branch}."
    )


def judge_plan(text: str, branch: int) -> list[str]:
    """Return what speaks against a simulated transaction of apt (`apt-get -s`)."""
    incoming = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", text, re.MULTILINE)
    removed = re.findall(r"^Remv (\S+)", text, re.MULTILINE)
    jumps = [
        f"{name} {version}"
        for name, version in incoming
        if DRIVER.match(name) and branch_of(version) not in (None, branch)
    ]
    kernels = [name for name, _version in incoming if re.match(r"linux-image-\d", name)]
    strangers = [name for name in removed if not re.search(r"nvidia|cuda|nouveau", name)]
    problems = []
    if jumps:
        problems.append(
            f"apt would bring {', '.join(jumps)}, not branch {branch}: a transitional package"
            " jumps branch. Name another driver_version, or another driver_source."
        )
    if kernels:
        problems.append(
            f"apt would bring a new kernel too: {', '.join(kernels)}. Install it first."
        )
    if strangers:
        problems.append(f"apt would remove {', '.join(strangers)}. Remove what needs them first.")
    return problems


def plan_size(text: str) -> int:
    """Return the KiB that packages need when unpacked, of `apt-cache show`."""
    return sum(int(size) for size in re.findall(r"^Installed-Size: (\d+)", text, re.MULTILINE))


def judge_choice(branch: int, flavour: str, catalogue: dict[str, Any]) -> tuple[list[str], str]:
    """Return (problems, warning) of what was asked for."""
    last, rows = catalogue["last_branch"], {row["branch"]: row for row in catalogue["branches"]}
    good = [row for row in rows.values() if row["volta"]]
    problems = []
    if branch > last:
        problems.append(
            f"driver_branch {branch} does not drive Volta: {last} is the last that does. Its"
            " modules would load and find no card. Set driver_branch to"
            f" {' or '.join(str(row['branch']) for row in good)}."
        )
    elif branch not in rows:
        problems.append(
            f"driver_branch {branch} is not one that Volta is kept on:"
            f" {' or '.join(str(row['branch']) for row in good)}."
        )
    if flavour != catalogue["flavour"]:
        problems.append(
            f"driver_flavour {flavour} cannot drive a V100: those modules need a GPU System"
            f" Processor, which came after Volta. Set it to {catalogue['flavour']}."
        )
    ends = rows.get(branch, {}).get("ends", "")
    if ends and ends < f"{datetime.date.today():%Y-%m}":
        return problems, f"Driver branch {branch} has had no fixes since {ends}; {last} has."
    return problems, ""


def other_sources(repository: str, own: dict[str, str], apt: Path) -> list[str]:
    """Return the files that name the repository too: apt refuses one under two keys."""
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    wanted = re.compile(rf"^[^#\n]*{re.escape(repository.rstrip('/'))}/?(\s|$)", re.MULTILINE)
    return [str(f) for f in files if str(f) not in own and wanted.search(read(f))]


def list_packages() -> dict[str, Package]:
    status = read(Path("/var/lib/dpkg/status"))
    if status:
        return parse_status(status)
    _code, said = run("rpm", "-qa", "--qf", r"%{NAME} %{VERSION}-%{RELEASE}\n")
    return parse_rpm(said, read(Path("/etc/dnf/plugins/versionlock.list")))


def offered(names: list[str]) -> dict[str, list[str]]:
    """Return the versions that apt's lists have of packages; dnf is not asked."""
    return parse_madison(run("apt-cache", "madison", *names)[1]) if names else {}


def unbuilt(kernels: list[str]) -> list[str]:
    """Return the kernels without an nvidia module; one that has it needs no headers more."""
    return [k for k in kernels if not any(Path("/lib/modules", k).rglob("nvidia*.ko*"))]


def missing_headers(prefix: str, kernels: list[str], found: dict[str, Package]) -> list[str]:
    """Return the packages of headers that these kernels, and those to come, lack."""
    lacking = [k for k in dict.fromkeys(kernels) if not Path("/lib/modules", k, "build").exists()]
    names = [prefix + kernel for kernel in lacking]
    if prefix == "linux-headers-":  # linux-image-amd64 brings kernels: linux-headers-amd64 too
        images = (re.match(r"linux-image-((?!unsigned)[a-z]\S*)", name) for name in found)
        names += [prefix + image[1] for image in images if image]
    return [name for name in names if name not in found]


def plan(p: dict[str, Any], found: dict[str, Package], state: dict[str, Any]) -> None:
    """Add to `state` the version wanted, the packages that are not right, and the problems."""
    apt, branch, first = Path("/usr/bin/apt-get").exists(), p["branch"], p["packages"][0]
    here = found[first].version if first in found else ""
    versions = offered([first]) if apt and branch_of(here) != branch else {}
    wanted = state["wanted"] = choose(branch, p["version"], here, versions.get(first, []))
    drivers = {n for n, v in found.items() if DRIVER.match(n) and branch_of(v.version)}
    off = [n for n in {*p["packages"], *drivers} if n not in found or not fits(found[n], wanted)]
    wrong = any(n not in found or branch_of(found[n].version) != branch for n in p["packages"])
    kernels = p["kernels"] if wrong or (p["version"] and off) else unbuilt(p["kernels"])
    headers = missing_headers(p["headers"], kernels, found)
    versions = offered(sorted({*off, *headers})) if apt else {}
    targets, unknown = {}, []
    for name in sorted(off, key=[*p["packages"], *off].index):
        targets[name], problem = pick(name, branch, wanted, versions.get(name, []))
        if name == first and p["version"] and p["version"] != upstream(targets[name]):
            problem = problem or (
                f"{name} {p['version']} is in no package list of this host; of branch {branch}"
                f" there are {', '.join(v for v in versions[name] if branch_of(v) == branch)}."
            )
        if problem and name in p["packages"]:
            unknown.append(problem)
        if not problem and name in found and found[name].version == targets[name]:
            del targets[name]
    unknown += [
        f"{name} is in no package list of this host: mirrors drop old kernels' headers. Install"
        " the newest kernel with its headers, reboot into it, and run again."
        for name in headers
        if name not in versions
    ]
    state["broken"] = [f"{n} ({v.state})" for n, v in found.items() if v.state != "installed"]
    if not (targets or headers or state["broken"]):
        return
    parts = {
        "to install": [*(n for n in targets if n not in found), *headers],
        f"not {wanted or branch}": [f"{n} {found[n].version}" for n in targets if n in found],
        "half-installed": state["broken"],
    }
    state["todo"]["packages"] = "; ".join(f"{w}: {', '.join(n)}" for w, n in parts.items() if n)
    mark = "=" if apt else "-"
    named = [n + mark + v if v else n for n, v in targets.items() if v or n in p["packages"]]
    state["install"] = named + headers
    held = [n for n in targets if n in found and found[n].held]
    if held and not Path(p["pin"]).exists():
        state["problems"].append(
            f"Held at another version: {', '.join(f'{n} {found[n].version}' for n in held)}. Let"
            f" them go (apt-mark unhold {' '.join(held)}), or keep them by driver_branch."
        )
    if apt and p["fresh"] and not state["problems"]:
        pin = p["files"].get(p["pin"], "").replace("@VERSION@", wanted)
        state["problems"] += unknown or simulate(state["install"], branch, pin)


def fits(package: Package, wanted: str) -> bool:
    return upstream(package.version) == wanted and package.state == "installed"


def simulate(names: list[str], branch: int, pin: str) -> list[str]:
    """Return what speaks against installing these: what apt would do, and the room for it."""
    with tempfile.NamedTemporaryFile("w", suffix=".pref") as file:
        file.write(pin)  # not on the host yet, and it decides which libraries come along
        file.flush()
        options = ["--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages"]
        options += ["-o", f"Dir::Etc::Preferences={file.name}"]
        code, said = run("apt-get", "-s", "-y", *options, "install", *names)
    if code != 0:
        errors = [" ".join(line.split()) for line in said.splitlines() if "Depends:" in line]
        errors = errors or re.findall(r"^E: (.+)", said, re.MULTILINE)
        return [
            f"apt cannot bring {' '.join(names)} together with what is here:"
            f" {'; '.join(errors[:4])}. Remove the packages of the other branch (apt-get purge),"
            " or make the mirror whole, and run again."
        ]
    incoming = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", said, re.MULTILINE)
    need = plan_size(run("apt-cache", "show", *(f"{n}={v}" for n, v in incoming))[1])
    free = shutil.disk_usage("/usr").free // 1024
    problems = judge_plan(said, branch)
    if need > free:
        problems.append(
            f"The driver's packages need {need / 2**20:.1f} GiB, /usr has {free / 2**20:.1f} GiB"
            " free. Make room and run again."
        )
    return problems


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "branch": {"type": "int", "required": True},
            "version": {"type": "str", "default": ""},
            "flavour": {"type": "str", "default": "proprietary"},
            "catalogue": {"type": "dict", "required": True},
            "packages": {"type": "list", "elements": "str", "required": True},
            "kernels": {"type": "list", "elements": "str", "required": True},
            "headers": {"type": "str", "default": "linux-headers-"},
            "files": {"type": "dict", "default": {}},
            "pin": {"type": "str", "default": ""},
            "repository": {"type": "str", "default": ""},
            "fresh": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    p = module.params
    state: dict[str, Any] = {"todo": {}, "install": [], "stale": {}}
    state["problems"], warning = judge_choice(p["branch"], p["flavour"], p["catalogue"])
    if warning:
        module.warn(warning)
    if p["version"] and branch_of(p["version"]) != p["branch"]:
        state["problems"].append(
            f"driver_version {p['version']} is not of driver_branch {p['branch']}."
        )
    others = other_sources(p["repository"], p["files"], Path("/etc/apt")) if p["repository"] else []
    if others:
        state["problems"].append(
            f"{', '.join(others)} names {p['repository']} too, and apt refuses one repository under"
            " two keys. Remove it (a cuda-keyring package: apt-get purge cuda-keyring)."
        )
    found = list_packages()
    plan(p, found, state)
    for path, text in p["files"].items():
        if "@VERSION@" in text and not state["wanted"]:
            continue  # the lists of packages are still to come
        text = text.replace("@VERSION@", state["wanted"])
        if read(Path(path)) != text:
            state["stale"][path] = text
    if state["stale"]:
        state["todo"]["write"] = ", ".join(state["stale"])
    state["hold"] = sorted(n for n, v in found.items() if DRIVER.match(n) and not v.held)
    if state["hold"]:
        state["todo"]["hold"] = f"not held: {', '.join(state['hold'])}"
    module.exit_json(changed=False, **state)


if __name__ == "__main__":
    main()
