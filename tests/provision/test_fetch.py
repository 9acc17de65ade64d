"""A model is fetched whole and by hash, whatever the hub, the web server or the directory does."""

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from subprocess import PIPE

import msgspec
import pytest

from volta_provision.errors import StackError
from volta_provision.fetch import Hashes, fetch, refuse_unfit
from volta_provision.lockfile import make_lock
from volta_provision.stack import File, Hub, Model, Serve, Stack, Tree

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "volta/tiny"
SHARD = os.urandom(24 << 20)  # the hub's client writes pieces of 10 MB
CONTENT = {"config.json": b'{"model_type": "llama"}', "weights/model.safetensors": SHARD}


def listed(content):
    return [File(n, len(data), hashlib.sha256(data).hexdigest()) for n, data in content.items()]


class Server(ThreadingHTTPServer):
    """Plays the hub at /REPO/resolve/COMMIT and a plain web server at /tree, with ranges."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = dict(CONTENT)
        self.asked = []  # (name, first byte) of each GET
        self.dies_at = None  # from this byte of a file on the server is gone
        self.gone = False
        self.stalls = None  # an event that a request waits for in the midst of a large file
        self.silent = threading.Event()  # set when half a file was sent

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log_message = lambda *_: None  # noqa: E731

    def do_HEAD(self):
        self.answer(head=True)

    def do_GET(self):
        self.answer(head=False)

    def answer(self, head):
        server = self.server
        name = self.path.split(f"/resolve/{COMMIT}/")[-1].removeprefix("/tree/")
        data = server.content.get(name)
        if server.gone:
            self.close_connection = True
            return
        if data is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first = int(self.headers.get("Range", "bytes=0-").split("=")[1].split("-")[0])
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if head:
            return
        server.asked.append((name, first))
        if server.dies_at is not None and len(data) > server.dies_at:
            self.wfile.write(data[first : server.dies_at])
            server.gone = self.close_connection = True
            return
        if server.stalls and len(data) > len(SHARD) // 2:
            self.wfile.write(data[first : len(SHARD) // 2])
            server.silent.set()
            server.stalls.wait(60)
            self.close_connection = True
            return
        self.wfile.write(data[first:])


@pytest.fixture
def server():
    server = Server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def model(server, tmp_path):
    """Return a function that gives a model of a kind; a hub's is the server."""

    def make(kind):
        if kind == "hub":
            return Model("Tiny", Hub(REPO, COMMIT, listed(CONTENT)))
        url = f"{server.url}/tree/"
        if kind == "file":
            for name, data in CONTENT.items():
                (tmp_path / "a tree" / name).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "a tree" / name).write_bytes(data)
            url = (tmp_path / "a tree").as_uri()
        return Model("Tiny", Tree(url, listed(CONTENT)))

    return make


FETCH = """
import sys, msgspec, pathlib
from volta_provision.errors import StackError
from volta_provision.fetch import fetch
from volta_provision.stack import Model
model = msgspec.json.decode(sys.argv[1], type=Model)
try:
    print(msgspec.json.encode(fetch(model, pathlib.Path(sys.argv[2]))).decode())
except StackError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def run(server, tmp_path):
    """Return a function that fetches in a process of its own, killed once `until` is set."""

    def fetch_there(model, until=None):
        env = {"HF_ENDPOINT": server.url, "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        env |= {"HF_HOME": str(tmp_path / "home"), "HF_HUB_VERBOSITY": "error"}
        command = [sys.executable, "-c", FETCH, msgspec.json.encode(model), tmp_path / "models"]
        with subprocess.Popen(
            command, env={**os.environ, **env}, stdout=PIPE, stderr=PIPE, text=True
        ) as process:
            if until:
                assert until.wait(60)
                time.sleep(0.5)  # what was sent arrives
                process.kill()
            return subprocess.CompletedProcess(
                command, process.wait(120), process.stdout.read(), process.stderr.read()
            )

    return fetch_there


def whole(directory):
    """Say that the directory holds the model and its checksums, and nothing else."""
    found = {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
    check = ["sha256sum", "--check", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=directory, check=True)
    found.pop("SHA256SUMS")
    return found == CONTENT


@pytest.mark.parametrize("kind", ["hub", "tree", "file"])
def test_a_model_is_fetched_once(kind, model, run, server, tmp_path):
    first = run(model(kind))
    assert json.loads(first.stdout) == [f"{name}: fetched" for name in CONTENT], first.stderr
    assert whole(tmp_path / "models/Tiny")
    assert {path.name for path in (tmp_path / "models").iterdir()} == {"Tiny", ".Tiny.hashes"}
    server.asked.clear()
    assert json.loads(run(model(kind)).stdout) == []
    assert not server.asked


@pytest.mark.parametrize("kind", ["hub", "tree"])
def test_a_download_that_broke_off_is_continued(kind, model, run, server, tmp_path):
    server.dies_at = len(SHARD) // 2
    broken = run(model(kind))
    assert broken.returncode == 1
    assert "weights/model.safetensors could not be fetched from " in broken.stderr
    assert "the next run continues" in broken.stderr
    assert not (tmp_path / "models/Tiny").exists()
    server.dies_at, server.gone = None, False
    server.asked.clear()
    again = run(model(kind))
    assert again.returncode == 0, again.stderr
    assert whole(tmp_path / "models/Tiny")
    ((name, first),) = server.asked  # config.json was there
    assert name == "weights/model.safetensors"
    assert 0 < first <= len(SHARD) // 2


@pytest.mark.parametrize("kind", ["hub", "tree"])
def test_a_download_that_was_killed_is_continued(kind, model, run, server, tmp_path):
    server.stalls = threading.Event()
    assert run(model(kind), until=server.silent).returncode < 0
    server.stalls.set()
    server.stalls = None
    server.asked.clear()
    assert run(model(kind)).returncode == 0
    assert whole(tmp_path / "models/Tiny")
    ((name, first),) = server.asked
    assert name == "weights/model.safetensors"
    assert first >= 10_000_000


@pytest.mark.parametrize("kind", ["hub", "tree", "file"])
def test_a_damaged_file_is_named_and_fetched_anew(kind, model, run, server, tmp_path):
    run(model(kind))
    server.asked.clear()
    shard = tmp_path / "models/Tiny/weights/model.safetensors"
    with shard.open("r+b") as file:
        file.seek(1000)
        file.write(b"damage")
    (said,) = json.loads(run(model(kind)).stdout)
    assert said.startswith("weights/model.safetensors: its sha256 was ")
    assert said.endswith(": fetched anew")
    assert whole(tmp_path / "models/Tiny")
    assert kind == "file" or server.asked == [("weights/model.safetensors", 0)]


@pytest.mark.parametrize("kind", ["hub", "tree"])
def test_another_file_than_the_lock_s_is_refused_and_never_served(
    kind, model, run, server, tmp_path
):
    server.content["config.json"] = CONTENT["config.json"].replace(b"llama", b"lemma")
    refused = run(model(kind))
    assert refused.returncode == 1
    assert "config.json: what was fetched has sha256 " in refused.stderr
    assert "2 times: the source holds another file" in refused.stderr
    assert len(server.asked) == 2
    assert not (tmp_path / "models/Tiny").exists()


def test_a_file_that_is_not_there_is_named(model, run, server):
    del server.content["config.json"]
    refused = run(model("hub"))
    assert refused.returncode == 1
    assert f"config.json could not be fetched from {REPO} at {COMMIT}: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_full_disk_is_told_before_the_download(tmp_path):
    source = Tree("file:///nowhere", [File("model.safetensors", 1 << 60, "0" * 64)])
    with pytest.raises(StackError, match=r"GiB free, the model needs 1073741824\.0 GiB more"):
        fetch(Model("Tiny", source), tmp_path)


def test_a_check_fetches_nothing(model, tmp_path):
    assert fetch(model("file"), tmp_path / "models", check=True) == [
        f"{name}: fetched" for name in CONTENT
    ]
    assert not (tmp_path / "models").exists()


def test_a_file_that_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"content")
    hashes = Hashes(tmp_path / ".hashes")
    digest = hashes.of(tmp_path, "file")
    hashes.save()
    monkeypatch.setattr("volta_provision.fetch.sha256", lambda _: pytest.fail("read again"))
    assert Hashes(tmp_path / ".hashes").of(tmp_path, "file") == digest


def test_what_the_doctor_fails_is_not_served(tmp_path):
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (tmp_path / "model.safetensors").write_bytes((1 << 16).to_bytes(8, "little"))
    with pytest.raises(StackError, match=r"cannot be served here: st-header: Trunc") as error:
        refuse_unfit(tmp_path, "embedded", Serve())
    assert str(tmp_path) in str(error.value)


def test_a_lock_holds_where_its_model_comes_from():
    lock = make_lock(Stack(model="smollm2-135m-instruct-nvfp4"), "cpu", "sha256:0")
    assert msgspec.yaml.decode(lock.encode(), type=type(lock)) == lock
