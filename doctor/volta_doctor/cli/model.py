"""`volta-doctor model`: judge a checkpoint from its headers."""

import gc
import re
from collections.abc import Callable
from datetime import date, datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from volta_doctor.cli.check import Format
from volta_doctor.cli.options import COUNT, Named, Number, Scope, scoped

if TYPE_CHECKING:
    from volta_doctor.catalog import Row
    from volta_doctor.catalog.engines import Engine
    from volta_doctor.facts.model import Snapshot
    from volta_doctor.facts.serve.engines import Flags
    from volta_doctor.preflight.subject import Cards


_MOST_GPUS = 1024  # more than any model is split over
_GPUS = click.IntRange(1, _MOST_GPUS)
# Said where a name of the Hugging Face hub stands in the place of a path.
_DOWNLOAD = "hf download {0} --include '*.json' --local-dir DIR fetches what can be judged early"
_SERVING = (
    click.option("--tensor-parallel-size", "--tp", type=_GPUS, metavar="N"),
    click.option("--pipeline-parallel-size", "--pp", type=_GPUS, metavar="N"),
    click.option("--enable-expert-parallel", "--ep", is_flag=True),
    click.option("--max-model-len", type=COUNT, metavar="TOKENS"),
    click.option("--max-num-seqs", type=COUNT, metavar="N"),
    click.option(
        "--gpu-memory-utilization",
        type=Number(min=0, max=1, min_open=True),
        metavar="SHARE",
    ),
    click.option("--dtype", metavar="NAME"),
    click.option("--quantization", "-q", metavar="NAME"),
    click.option("--kv-cache-dtype", metavar="NAME"),
    click.option("--attention-backend", metavar="NAME"),
    click.option("--enforce-eager", is_flag=True),
    click.option("--swap-space", "swap_space_gib", type=Number(min=0), metavar="GIB"),
)

# What is looked at on this host: its cards, and what a check of the host itself needs.
_OF_CARDS, _OF_HOST = {"host", "nvml", "pci"}, {"serve"}


def _serving(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SERVING):
        command = option(command)
    return command


@click.command()
@click.argument("path", type=Named())
@click.option("--gpu", metavar="CARD", help="The cards meant (v100-sxm2-16gb), not this host's.")
@click.option(
    "--count", type=_GPUS, metavar="N", help="How many of them; else as many as split it."
)
@click.option("--engine", metavar="NAME", help="What is to serve it (embedded, vllm, ...).")
@_serving
@click.option("--all-scales", is_flag=True, help="Read every scale, not a part of the large ones.")
@click.option("--format", "form", type=Format(), default="table", help="table is for a reader.")
@click.option(
    "-o", "--output", type=Named(), metavar="FILE", help="Write the report there; it appears whole."
)
@click.option("-v", "--verbose", is_flag=True, help="Every finding, and the map of the modules.")
@scoped("snapshot", "select", "ignore", "waivers")
@click.pass_context
def model(
    context: click.Context,
    /,
    scope: Scope,
    path: str,
    gpu: str | None,
    count: int | None,
    engine: str | None,
    all_scales: bool,
    form: str,
    output: str | None,
    verbose: bool,
    **serving: Any,
) -> None:
    """Judge a checkpoint before it is served, or downloaded whole.

    PATH is a directory as on Hugging Face, or a GGUF file. Only headers, configs and scales are
    read. The flags of a server are vLLM's; with --gpu, or on a host with Volta cards, its place
    there is judged too.
    """
    gc.disable()  # hundreds of thousands of objects without cycles; it would look for some in vain
    from volta_doctor import waivers
    from volta_doctor.catalog.model import model_checks
    from volta_doctor.cli.looking import waivers_of
    from volta_doctor.cli.options import selected
    from volta_doctor.cli.output import publish
    from volta_doctor.facts.serve.engines import Flags
    from volta_doctor.preflight import judge, look, report
    from volta_doctor.words import printable
    from volta_runtime.checkpoint.errors import CheckpointError

    rows = selected(scope, model_checks())
    flags = Flags(model=path, **serving)
    wanted, cards = _engine(engine), _cards(gpu, count, flags, scope)
    borne = waivers_of(scope)
    _look_for(path)
    host = _host(scope, cards, rows)
    try:
        meant = look.look(Path(path), wanted, flags, cards, host.facts, all_scales)
    except CheckpointError as error:  # it is there, and may not be looked at
        click.echo(f"Error: {printable(str(error))}", err=True)
        context.exit(3)
    day = date.fromisoformat(host.taken[:10])
    findings = judge.judge(meant, rows, borne, day)
    notes = waivers.notes(findings, borne, day)
    made = report.build(meant, host, findings, notes)
    publish(made, form, output, verbose)
    context.exit(made.summary.exit_code)


def _look_for(path: str) -> None:
    """Raise click.UsageError where there is nothing of that name."""
    try:
        Path(path).stat()
    except PermissionError:
        return  # it may be there: who looks at it tells
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        from volta_doctor.words import printable

        reason = error.strerror if isinstance(error, OSError) else error
        hint = f"; {_DOWNLOAD.format(path)}" if re.fullmatch(r"[\w.-]+/[\w.-]+", path) else ""
        raise click.UsageError(f"{printable(path)}: {reason}{hint}") from error


def _engine(name: str | None) -> "Engine | None":
    from volta_doctor.catalog.engines import engines

    if name is None or name in engines():
        return engines()[name] if name else None
    raise click.UsageError(f"--engine: no engine {name!r}; there are {', '.join(engines())}")


def _cards(gpu: str | None, count: int | None, flags: "Flags", scope: Scope) -> "Cards | None":
    """Return the cards that were named, as many as the model is split over where that was not."""
    from volta_doctor.catalog import compat
    from volta_doctor.preflight import cards

    parts = (flags.tensor_parallel_size or 1) * (flags.pipeline_parallel_size or 1)
    if parts > _MOST_GPUS:
        raise click.UsageError(f"{parts:,} GPUs, --tp times --pp, are more than {_MOST_GPUS:,}")
    if gpu is None:
        if count is not None:
            raise click.UsageError("--count needs --gpu: this host has the cards that it has")
        return None
    if scope.snapshot:
        raise click.UsageError("--gpu has no effect with --snapshot: choose one of them")
    if gpu not in compat().cards:
        raise click.UsageError(f"--gpu: no card {gpu!r}; there are {', '.join(compat().cards)}")
    return cards.of_flag(gpu, count or parts)


def _host(scope: Scope, named: "Cards | None", rows: "list[Row]") -> "Snapshot":
    """Return what there is to know of the host that is meant: nothing where cards were named."""
    from importlib.metadata import version

    from volta_doctor.cli.looking import read, taken
    from volta_doctor.facts.model import SCHEMA, Facts, Snapshot

    if scope.snapshot:
        return read(scope.snapshot)
    if named is None:
        of_host = any("host" in row.needs for row in rows)
        return taken(scope, _OF_CARDS | (_OF_HOST if of_host else set()))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    tool = f"volta-doctor {version('volta-stack')}"
    return Snapshot(schema=SCHEMA, tool=tool, taken=now, facts=Facts())
