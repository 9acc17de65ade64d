"""Hosts with fake V100s, on which real pynvml runs."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

import volta_doctor
from volta_doctor.facts.nvml import NvmlFacts
from volta_doctor.facts.topo import TopoFacts


def run_python(code: str, env: dict[str, str]) -> bytes:
    """Run `code` in a process of its own: pynvml loads its library once per process."""
    package = str(Path(volta_doctor.__file__).parents[1])
    command = [sys.executable, "-c", code]
    env = env | {"PYTHONPATH": package}
    done = subprocess.run(command, env=env, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def collector_facts(env: dict[str, str]) -> NvmlFacts:
    """What the collector says in that environment."""
    code = (
        "import sys, msgspec; from volta_doctor.facts.nvml import collect;"
        "sys.stdout.buffer.write(msgspec.json.encode(collect()))"
    )
    return msgspec.json.decode(run_python(code, env), type=NvmlFacts)


@dataclass
class FakeHost:
    """A host that is a state file and a library."""

    fakegpu: ModuleType
    state: Path
    env: dict[str, str]

    def collect(self) -> NvmlFacts:
        """The collector's facts of this host."""
        return collector_facts(self.env)

    def topo(self) -> TopoFacts:
        """The topology as real pynvml tells it."""
        code = (
            "import sys, msgspec; from volta_doctor.facts.topo.nvml import read_host;"
            "sys.stdout.buffer.write(msgspec.json.encode(read_host()))"
        )
        return msgspec.json.decode(run_python(code, self.env), type=TopoFacts)

    def python(self, code: str) -> str:
        """What `code` prints here, with pynvml initialised and GPU 0's handle in `gpu`."""
        start = "import pynvml as nvml; nvml.nvmlInit(); gpu = nvml.nvmlDeviceGetHandleByIndex(0)\n"
        return run_python(start + code, self.env).decode().strip()

    def reboot(self) -> None:
        """What a reboot does."""
        self.fakegpu.reboot(self.state)


@pytest.fixture(scope="session")
def fakegpu() -> ModuleType:
    import fakegpu

    return fakegpu


@pytest.fixture(scope="session")
def library(
    fakegpu: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[str]], Path]:
    """Directories with the library, each built once: library(functions to leave out)."""
    built: dict[tuple[str, ...], Path] = {}

    def build(omit: list[str]) -> Path:
        key = tuple(sorted(omit))
        if key not in built:
            built[key] = tmp_path_factory.mktemp("library")
            fakegpu.build(built[key], omit)
        return built[key]

    return build


@pytest.fixture
def fake_host(
    fakegpu: ModuleType, library: Callable[[list[str]], Path], tmp_path: Path
) -> Callable[..., FakeHost]:
    """fake_host(snapshot, omit=[...], topo={...}, **NVML facts to replace)."""

    def make(snapshot: str, omit: list[str] | None = None, **replaced: Any) -> FakeHost:
        fake = fakegpu.load(snapshot)
        state = tmp_path / "state"
        topo = replaced.pop("topo", fake.topo)
        fakegpu.write_state(state, replace(fake, nvml=fake.nvml | replaced, topo=topo))
        env = fakegpu.environment(library(fake.omit + (omit or [])), state)
        return FakeHost(fakegpu, state, env)

    return make


@dataclass
class LiveHost:
    """A whole fake host, on which the doctor's command line runs."""

    root: Path
    env: dict[str, str]

    def command(self, name: str, script: str) -> None:
        """Put a program on the host, or another in its place."""
        path = self.root / "usr/bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def doctor(
        self, *args: str, before: Sequence[str] = (), limit: float = 60, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run volta-doctor; `before` is a command that runs it (time, setpriv)."""
        return subprocess.run(
            [*before, sys.executable, "-m", "volta_doctor", *args],
            env=self.env | env,
            check=False,
            capture_output=True,
            encoding="utf-8",
            timeout=limit,
        )

    def findings(self, *args: str, **how: Any) -> dict[str, list[dict[str, Any]]]:
        """What `check` finds, by id."""
        done = self.doctor("check", "--format", "json", *args, **how)
        assert done.stderr == ""
        return self.by_id(done.stdout)

    @staticmethod
    def by_id(report: str) -> dict[str, list[dict[str, Any]]]:
        """The findings of a JSON report."""
        found: dict[str, list[dict[str, Any]]] = {}
        for finding in json.loads(report)["findings"]:
            found.setdefault(finding["id"], []).append(finding)
        return found


@pytest.fixture
def live_host(
    fakegpu: ModuleType, library: Callable[[list[str]], Path], tmp_path: Path
) -> Callable[..., LiveHost]:
    """live_host(snapshot, **parts of the Fake to replace)."""

    def make(snapshot: str, **replaced: Any) -> LiveHost:
        fake = replace(fakegpu.load(snapshot), **replaced)
        env = fakegpu.host_environment(tmp_path, fake, library(fake.omit) / "libnvidia-ml.so.1")
        package = str(Path(volta_doctor.__file__).parents[1])
        home = tmp_path / "root/root"
        home.mkdir()
        kept = {"PATH": "/usr/bin:/bin", "HOME": str(home), "PYTHONPATH": package, "COLUMNS": "80"}
        names = ("LD_LIBRARY_PATH", "VOLTA_FAKE_NVML", "VOLTA_DOCTOR_SYSROOT")
        return LiveHost(tmp_path / "root", kept | {name: env[name] for name in names})

    return make


@pytest.fixture
def broken_library(tmp_path: Path) -> dict[str, str]:
    """The environment of a host where libnvidia-ml.so.1 cannot be loaded, installed or not."""
    (tmp_path / "libnvidia-ml.so.1").touch()
    return os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}


@pytest.fixture(scope="session")
def run_collector() -> Callable[[dict[str, str]], NvmlFacts]:
    """run_collector(environment): for hosts that are no FakeHost."""
    return collector_facts
