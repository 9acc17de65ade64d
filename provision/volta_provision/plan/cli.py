"""`volta-stack plan`: the options, and what becomes of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from volta_doctor.cli.options import COUNT, Named, Number
from volta_doctor.cli.output import unforeseen
from volta_provision.errors import StackError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from volta_provision.plan.hosts import Host
    from volta_provision.plan.planner import Outcome
    from volta_provision.plan.report import Plan

_MOST_GPUS = 16
_COULD_NOT_TELL = 3
_CONTEXT, _CONCURRENCY = 8192, 16


@click.command(
    epilog="Exit codes: 0 runs, 1 runs with warnings, 2 does not run, 3 could not tell, 64 wrong"
    " usage."
)
@click.argument("model", type=Named())
@click.argument("more_hosts", metavar="", nargs=-1)
@click.option(
    "--hosts",
    metavar="FILE...",
    multiple=True,
    help="Snapshots (volta-doctor snapshot); the weakest host decides.  [default: this host]",
)
@click.option("--gpu", metavar="CARD", help="Plan for cards (v100-sxm2-16gb), not for hosts.")
@click.option("--count", type=click.IntRange(1, _MOST_GPUS), metavar="N", help="How many.")
@click.option("--idle", is_flag=True, help="As if no other process held memory of the GPUs.")
@click.option(
    "--context",
    type=COUNT,
    metavar="TOKENS",
    help=f"Longest request with its answer.  [default: {_CONTEXT}, less where that does not fit]",
)
@click.option(
    "--concurrency",
    type=COUNT,
    metavar="N",
    help=f"Requests at once.  [default: {_CONCURRENCY}, fewer where these do not fit]",
)
@click.option("--engine", metavar="NAME", help="This engine only.")
@click.option(
    "--tensor-parallel-size", "--tp", type=click.IntRange(1, _MOST_GPUS), metavar="N", help="GPUs."
)
@click.option("--gpu-memory-utilization", type=Number(min=0, max=1, min_open=True), metavar="SHARE")
@click.option("--kv-cache-dtype", metavar="NAME")
@click.option("--dtype", metavar="NAME")
@click.option("--enforce-eager", is_flag=True, help="Without CUDA graphs.")
@click.option("--all-scales", is_flag=True, help="Read every scale, not a part of the large ones.")
@click.option("--format", "form", type=click.Choice(["table", "json"]), default="table")
@click.option("-v", "--verbose", is_flag=True, help="And how the figures were made.")
@click.option(
    "--write",
    "stack_file",
    type=Named(),
    metavar="FILE",
    help="Write the plan as a stack.yaml.",
)
@click.option("--force", is_flag=True, help="Let --write replace a file.")
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    form: str,
    verbose: bool,
    stack_file: str | None,
    force: bool,
    **given: Any,
) -> None:
    """Say whether MODEL runs on given hosts, with what, how, and how fast.

    MODEL is a checkpoint's directory, a GGUF file, or a model of models.yaml. Only headers, configs
    and scales are read.
    """
    try:
        code = _answer(given, form, verbose, stack_file, force)
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        # Python's own exit code for this is 1, which here would read as "runs, but".
        code = _COULD_NOT_TELL
        unforeseen(error, "the plan")
    ctx.exit(code)


def _answer(
    given: dict[str, Any], form: str, verbose: bool, stack_file: str | None, force: bool
) -> int:
    """Plan, write and show; returns the exit code. Raises click.ClickException."""
    from volta_doctor.words import printable
    from volta_provision.plan.model import NotHereError
    from volta_provision.plan.write import write_stack
    from volta_runtime.checkpoint.errors import CheckpointError

    try:
        found = _outcome(given)
        if stack_file and found.stack:
            write_stack(found.stack, Path(stack_file), force)
    except NotHereError as error:
        click.echo(f"volta-stack: {error}", err=True)
        return _COULD_NOT_TELL
    except StackError as error:
        raise click.ClickException(str(error)) from error
    except CheckpointError as error:  # it is there, and may not be looked at
        click.echo(f"Error: {printable(str(error))}", err=True)
        return _COULD_NOT_TELL
    _show(found.plan, form, verbose)
    if stack_file and not found.stack:
        click.echo(f"{stack_file} was not written: nothing runs", err=True)
    return found.plan.exit_code


def _outcome(given: dict[str, Any]) -> "Outcome":
    from volta_provision.plan.candidates import Wanted
    from volta_provision.plan.planner import planned

    _refuse_strangers(given)
    usual = {"context": _CONTEXT, "concurrency": _CONCURRENCY}
    may_lower = frozenset(name for name in usual if given[name] is None)
    wanted = Wanted(
        context=given["context"] or _CONTEXT,
        concurrency=given["concurrency"] or _CONCURRENCY,
        engine=given["engine"] or "",
        tensor_parallel_size=given["tensor_parallel_size"],
        gpu_memory_utilization=given["gpu_memory_utilization"],
        kv_cache_dtype=given["kv_cache_dtype"],
        dtype=given["dtype"],
        enforce_eager=given["enforce_eager"],
    )
    return planned(given["model"], _hosts(given), wanted, may_lower, given["all_scales"])


def _refuse_strangers(given: dict[str, Any]) -> None:
    """Raise click.UsageError for options that do not go together, and for names that are none."""
    from volta_doctor.catalog import compat
    from volta_doctor.catalog.engines import engines

    for option, known in (("engine", engines()), ("gpu", compat().cards)):
        if given[option] and given[option] not in known:
            names = ", ".join(known)
            raise click.UsageError(f"--{option}: no {given[option]!r}; there are {names}")
    if given["gpu"] and given["hosts"]:
        raise click.UsageError("--gpu has no effect with --hosts: choose one of them")
    if given["count"] and not given["gpu"]:
        raise click.UsageError("--count needs --gpu: hosts have the cards that they have")
    if given["more_hosts"] and not given["hosts"]:
        strays = " ".join(given["more_hosts"])
        raise click.UsageError(f"one MODEL is planned for, and then there is {strays}")


def _hosts(given: dict[str, Any]) -> "Sequence[Host]":
    from volta_provision.plan import hosts

    if given["gpu"]:
        return [hosts.of_flag(given["gpu"], given["count"] or 1)]
    if given["hosts"]:
        files = [*given["hosts"], *given["more_hosts"]]
        return hosts.of_files([Path(file) for file in files], given["idle"])
    from volta_doctor.facts.gather import gather
    from volta_doctor.probe import Probe

    facts = gather(Probe(), hosts.SECTIONS).facts
    return [hosts.of_facts(facts, "this host", given["idle"])]


def _show(made: "Plan", form: str, verbose: bool) -> None:
    import json

    import msgspec

    from volta_doctor.cli.output import show, stdout
    from volta_provision.plan.table import render

    file = stdout(form)
    if form == "json":
        # ASCII, as json makes it: a path may be no UTF-8, or turn the direction of writing.
        show(json.dumps(msgspec.to_builtins(made), indent=2))
    else:
        show(render(made, file, verbose))
