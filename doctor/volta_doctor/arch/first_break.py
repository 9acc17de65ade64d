"""The first edge that breaks, and the smallest change that mends it."""

import shlex

from volta_doctor.arch import edges, rebuild, rules, with_torch
from volta_doctor.arch.model import CodeFile, Scan
from volta_doctor.arch.report import Break, JudgedFile
from volta_doctor.facts.python_envs import PythonEnv
from volta_doctor.findings import Finding


def find(
    findings: list[Finding],
    scan: Scan,
    files: list[JudgedFile],
    env: PythonEnv | None,
    owners: rebuild.Owners,
) -> Break | None:
    """Return the first edge that breaks, None where all hold."""
    broken = edges.in_order(findings)
    if not broken:
        return None
    first, *others = broken
    bad = [f for f in files if f.verdict == "cannot run" and not f.unused]
    edge = edges.edge_of(first, _traits(bad, owners))
    then = [f"{f.id}: {f.message}" for f in others if f.id not in edge.mends]
    nvidias = list(
        dict.fromkeys(_named(f.file, owners) for f in bad if rebuild.is_nvidias(f.file, owners))
    )
    is_wheel = scan.kind == "wheel"
    if nvidias and edge.where != "nvidia" and first.id == "ext-arch":
        then.append(f"NVIDIA alone builds {', '.join(nvidias)}: install an older one, for CUDA 12")
    builds = [file.rebuild for file in bad]
    if env and "{with_torch}" in edge.command:
        compiled = with_torch.compiled(scan.files, env, owners)
        built = f"is compiled against torch {env.torch}: build it anew"
        then += [f"{name} {built}" for name in compiled]
        then += with_torch.of_another_cuda(first, env)
        builds = [rebuild.line(f, rules.volta(), owners) for f in compiled.values()]
    change, commands = edges.fill(
        edge,
        {
            "pip": owners.pip,
            "seen": ", ".join(_seen(first, owners)),
            "pins": " ".join(seen.text for seen in first.evidence),
            "nvidia": ", ".join(nvidias),
            "remove": _words(with_torch.in_its_way(first, env) if env and not is_wheel else []),
            "with_torch": " ".join(["", _words(with_torch.pinned(env) if env else [])]).rstrip(),
            "rebuild": "\n".join(dict.fromkeys(filter(None, builds))),
        },
    )
    return Break(
        edge=edge.edge,
        check=first.id,
        found=first.message,
        change=change,
        commands=commands,
        then=then,
    )


def _words(texts: list[str]) -> str:
    """Put words on a command line; some come from files that anyone may have written."""
    return " ".join(map(shlex.quote, texts))


def _traits(bad: list[JudgedFile], owners: rebuild.Owners) -> set[edges.Trait]:
    """Return what is true of all files that cannot run."""
    found: set[edges.Trait] = set()
    if bad and all(_has_ptx(file.file) for file in bad):
        found.add("newer driver")
    if bad and all(rebuild.is_nvidias(file.file, owners) for file in bad):
        found.add("nvidia")
    return found


def _named(file: CodeFile, owners: rebuild.Owners) -> str:
    """Return the package that a file came with, else its name."""
    owner = owners.of(file.path)
    return f"{owner.name} {owner.version}" if owner else file.path.rsplit("/", 1)[-1]


def _seen(finding: Finding, owners: rebuild.Owners) -> list[str]:
    """Return what a finding is about, files by the package that they came with."""
    named = ((owners.of(seen.source), seen.text.split(" (")[0]) for seen in finding.evidence)
    return list(dict.fromkeys(f"{o.name} {o.version}" if o else text for o, text in named))


def _has_ptx(file: CodeFile) -> bool:
    """Say whether some driver compiles a file's PTX for Volta."""
    verdict = rules.judge(file.code, file.ptx_isa, rules.volta(), None)
    return verdict.status == "runs after JIT"
