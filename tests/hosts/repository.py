"""A signed apt repository of the small packages, and the server that hosts fetch them from."""

import functools
import hashlib
import http.server
import shutil
import subprocess
import threading
from pathlib import Path

from fakegpu import build
from packages import FAKE_STATE, VERSIONS, container_toolkit, driver, toolkit

KEY_NAME = "Volta test repository"


def make_repository(directory: Path, expired: bool = False) -> str:
    """Build and sign the repository; return the fingerprint of its key."""
    directory.mkdir(parents=True)
    scratch = directory / "scratch"
    pool = directory / "debian12/x86_64"
    pool.mkdir(parents=True)
    packages = [*toolkit("12.9.1"), *toolkit("13.0.2"), container_toolkit()]
    for version in VERSIONS:
        place = scratch / version
        place.mkdir(parents=True)
        library = build(place, define=[f'FAKE_STATE="{FAKE_STATE}"', f'FAKE_VERSION="{version}"'])
        packages += driver(version, library)
    for package in packages:
        package.build(pool, scratch)
    fingerprint = make_key(directory / "gnupg", directory / "key.asc", expired)
    index(pool, directory / "gnupg")
    # The agent that gpg has started would outlive the tests.
    subprocess.run(["gpgconf", "--homedir", directory / "gnupg", "--kill", "all"], check=True)
    shutil.rmtree(scratch)
    (directory / "debian13").symlink_to("debian12")
    return fingerprint


def make_key(home: Path, public: Path, expired: bool) -> str:
    """Make a signing key; an expired one was good for a day in 2020."""
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", home, "--batch", "--quiet"]
    times = ["--faked-system-time", "20200101T000000!"] if expired else []
    new = ["--passphrase", "", "--quick-generate-key", KEY_NAME, "rsa3072", "sign"]
    subprocess.run(
        [*gpg, *times, *new, "1d" if expired else "never"], check=True, stderr=subprocess.DEVNULL
    )
    public.write_bytes(
        subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True).stdout
    )
    listed = subprocess.run(
        [*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True
    )
    return next(line.split(":")[9] for line in listed.stdout.splitlines() if line.startswith("fpr"))


def index(pool: Path, home: Path) -> None:
    """Write Packages, Release and InRelease."""
    run = functools.partial(
        subprocess.run, cwd=pool, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    (pool / "Packages").write_bytes(run(["dpkg-scanpackages", "--multiversion", "."]).stdout)
    data = (pool / "Packages").read_bytes()
    release = (
        "Origin: NVIDIA\nLabel: NVIDIA CUDA\nSuite: stable\nDate: Thu, 01 Oct 2026 00:00:00 UTC\n"
    )
    release += f"SHA256:\n {hashlib.sha256(data).hexdigest()} {len(data)} Packages\n"
    (pool / "Release").write_text(release)
    command = [
        "gpg",
        "--homedir",
        home,
        "--batch",
        "--yes",
        "--clearsign",
        "-o",
        "InRelease",
        "Release",
    ]
    faked = ["--faked-system-time", "20200101T060000!"]
    try:
        run(command)
    except subprocess.CalledProcessError:  # an expired key signs only in its own time
        run([*command[:3], *faked, *command[3:]])


class Mirror(http.server.ThreadingHTTPServer):
    """Serves a repository by http; `dies_after` packages (.deb) it breaks off within the next."""

    def __init__(self, directory: Path, port: int = 0):
        self.dies_after: int | None = None
        super().__init__(("127.0.0.1", port), functools.partial(_Handler, directory=str(directory)))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def start(self) -> "Mirror":
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self


class _Handler(http.server.SimpleHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        if self.path.endswith(".deb") and self.server.dies_after is not None:
            if self.server.dies_after == 0:
                self.send_response(200)
                self.send_header("Content-Length", "1000000")
                self.end_headers()
                self.wfile.write(b"half a package")
                self.close_connection = True
                return
            self.server.dies_after -= 1
        super().do_GET()

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        pass
