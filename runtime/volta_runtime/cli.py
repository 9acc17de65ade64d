"""volta-serve: serve, convert and verify checkpoints. torch is imported by `serve` alone."""

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version as installed_version
from pathlib import Path

import click

from volta_runtime import env
from volta_runtime.checkpoint import verify as verify_checkpoint
from volta_runtime.errors import EngineDeadError, VoltaError
from volta_runtime.server.listen import bind

# sysexits.h. What supervises the server starts it again after 70, but not after 1 or 64.
_USAGE = 64
_SOFTWARE = 70

_DTYPES = ("auto", "half", "float16")
_DTYPE_REFUSALS = {
    "bfloat16": "V100 (sm_70) has no BF16 arithmetic; use --dtype half",
    "float32": "activations are FP16 on GPUs, and FP32 on CPUs in any case; use --dtype half",
}
_QUANTIZATIONS = (None, "None", "auto", "compressed-tensors")


def main() -> None:
    """The console script.

    User errors are one line on stderr and exit status 1 or 64. A failure that is nobody's mistake
    ends with 70, because a new start may heal it.
    """
    try:
        sys.exit(
            cli.main(prog_name="volta-serve", standalone_mode=False, auto_envvar_prefix=env.PREFIX)
        )
    except click.UsageError as error:
        error.show()
        sys.exit(_USAGE)
    except EngineDeadError as error:
        click.echo(f"volta-serve: error: {error}", err=True)
        sys.exit(_SOFTWARE)
    except (VoltaError, click.ClickException) as error:
        sys.exit(f"volta-serve: error: {error}")
    except (click.Abort, KeyboardInterrupt):
        sys.exit("volta-serve: interrupted")
    except Exception:
        traceback.print_exc()
        sys.exit(_SOFTWARE)


@click.group(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        # Every flag has a variable (--port: VOLTA_SERVE_PORT), so that a unit needs no flags.
        "auto_envvar_prefix": "VOLTA",
    }
)
@click.version_option(installed_version("volta-stack"), prog_name="volta-serve")
def cli() -> None:
    """Serve 4-bit checkpoints on Tesla V100s (and, for development, on CPUs)."""


def _check_dtype(_context: click.Context, _param: click.Parameter, value: str) -> None:
    if value not in _DTYPES:
        reason = _DTYPE_REFUSALS.get(value, f"supported: {', '.join(_DTYPES)}")
        raise click.BadParameter(f"{value}: {reason}")


def _check_quantization(
    _context: click.Context, _param: click.Parameter, value: str | None
) -> None:
    if value not in _QUANTIZATIONS:
        raise click.BadParameter(
            f"{value} is not supported; supported: compressed-tensors (NVFP4 weights). "
            "The format is read from the checkpoint, so the option can be left out"
        )


@cli.command()
@click.option(
    "--model", required=True, type=click.Path(path_type=Path), help="Checkpoint directory."
)
@click.option(
    "--served-model-name",
    multiple=True,
    help="Name that requests use; may be repeated.  [default: the directory's name]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="TCP port."
)
@click.option(
    "--max-model-len",
    type=click.IntRange(min=1),
    help="Context in tokens, prompt and answer.  [default: the model's own]",
)
@click.option(
    "--max-num-seqs",
    default=4,
    show_default=True,
    type=click.IntRange(1, 256),
    help="Requests served together; each reserves a KV cache of --max-model-len.",
)
@click.option(
    "--dtype",
    default="auto",
    callback=_check_dtype,
    expose_value=False,
    help="auto, half or float16.",
)
@click.option(
    "--quantization",
    "-q",
    callback=_check_quantization,
    expose_value=False,
    help="compressed-tensors, or left out.",
)
@click.option(
    "--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"])
)
@click.option("--seed", type=int, help="Seed of requests that bring none.  [default: random]")
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help=f"File that holds the key clients must send (or set {env.API_KEY}).",
)
def serve(
    model: Path,
    served_model_name: tuple[str, ...],
    host: str,
    port: int,
    max_model_len: int | None,
    max_num_seqs: int,
    device: str,
    seed: int | None,
    api_key_file: Path | None,
) -> None:
    """Serve a checkpoint over the OpenAI-compatible HTTP API.

    Flags have vLLM's names, and each has an environment variable: VOLTA_SERVE_PORT is --port.
    Listens on this machine only unless --host says otherwise.
    """
    if not model.is_dir():
        raise VoltaError(
            f"--model {model}: no such directory; pass a checkpoint directory with config.json, "
            "tokenizer.json and safetensors files"
        )
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("volta_runtime").setLevel(logging.INFO)
    # Before torch is imported and the model read, so that a taken port shows at once.
    sock = bind(host, port)
    env.yield_idle_cores()
    from volta_runtime.server.serve import ServeConfig
    from volta_runtime.server.serve import serve as run

    run(
        ServeConfig(
            model=model,
            names=served_model_name or (model.absolute().name,),
            host=host,
            port=port,
            device=device,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            seed=seed,
            api_key=_api_key(api_key_file),
        ),
        sock,
    )


def _api_key(file: Path | None) -> str | None:
    if file is None:
        return env.api_key()
    key = file.read_text(encoding="utf-8").strip()
    if not key:
        raise VoltaError(f"--api-key-file {file}: the file is empty")
    return key


@cli.command()
@click.argument("src", metavar="SRC.gguf", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT_DIR", type=click.Path(path_type=Path))
def convert(src: Path, out: Path) -> None:
    """Convert a GGUF file (Q4_1) to an NVFP4 checkpoint directory.

    OUT_DIR appears whole or not at all, with a SHA256SUMS file.
    """
    from volta_runtime.convert import convert_gguf

    with _progress() as progress:
        convert_gguf(src, out, progress)
    click.echo(f"converted {src} to {out}")


@cli.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
def verify(directory: Path) -> None:
    """Check a checkpoint's files against SHA256SUMS, and its headers against its config."""
    with _progress() as progress:
        verify_checkpoint(directory, progress)
    click.echo(f"{directory}: every file matches SHA256SUMS and the headers are sound")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None] | None]:
    """A progress bar on stderr, on a terminal only; its argument is (what, done, total)."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )
