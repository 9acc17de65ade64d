"""The API in this process, and volta-serve as a process of its own."""

import os
import re
import signal
import subprocess
import sys
import time

import httpx
import pytest
from fastapi.testclient import TestClient

from volta_runtime.server.app import create_app

NAME = "tiny"
MAIN = "from volta_runtime.cli import main; main()"
VOLTA_SERVE = (sys.executable, "-c", MAIN)


@pytest.fixture
def client(make_engine):
    """An HTTP client of an app with default settings."""
    with TestClient(create_app(make_engine(), (NAME, "alias"))) as client:
        yield client


@pytest.fixture(scope="session")
def volta_serve():
    """volta_serve(*arguments) runs the command to its end."""

    def run(*arguments, **options):
        command = [*VOLTA_SERVE, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)

    return run


class Server:
    """volta-serve serve on a free port; `patch` is code that runs before it."""

    def __init__(self, model, *options, env=None, patch=""):
        command = [sys.executable, "-c", f"{patch}\n{MAIN}", "serve", "--model", str(model)]
        self.process = subprocess.Popen(
            [*command, "--port", "0", "--device", "cpu", *options],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (env or {}),
        )
        self.log = ""
        while not (ready := re.search(r"serving .* at (http://\S+)", self.log)):
            line = self.process.stderr.readline()
            assert line, f"the server ended: {self.log}"
            self.log += line
        self.url = ready[1]
        self.http = httpx.Client(base_url=self.url, timeout=60)

    def metric(self, name):
        """A metric's value, 0 when it is absent."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.http.get("/metrics").text, re.M)
        return float(found[1]) if found else 0.0

    def wait_for(self, name, value, timeout=20):
        deadline = time.monotonic() + timeout
        while self.metric(name) != value:
            assert time.monotonic() < deadline, f"{name} is {self.metric(name)}, not {value}"
            time.sleep(0.02)

    def stop(self, number=signal.SIGTERM):
        """The exit status after a signal."""
        self.process.send_signal(number)
        status = self.process.wait(15)
        self.log += self.process.stderr.read()
        return status


@pytest.fixture(scope="session")
def start_server():
    """start_server(model, *options, env=None, patch=""); what still runs at the end is killed."""
    servers = []

    def start(model, *options, **how):
        servers.append(Server(model, *options, **how))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait()
        server.process.stderr.close()


@pytest.fixture(scope="session")
def server(start_server, tiny):
    """One server that tests share; they leave it running."""
    return start_server(tiny)
