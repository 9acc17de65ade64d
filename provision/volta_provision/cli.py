"""`volta-stack`: from an intent to a lock, and from a lock to what hosts install."""

import sys
from pathlib import Path
from typing import cast

import click
import msgspec

from volta_doctor.cli import open_standard_streams
from volta_doctor.files import write
from volta_provision.bundle import pack_release, write_bundle
from volta_provision.errors import StackError
from volta_provision.lockfile import make_lock
from volta_provision.plan.cli import plan
from volta_provision.source import find_source, pack_source
from volta_provision.stack import Profile, Stack, read_lockable

stack_option = click.option(
    "--stack",
    "stack_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("stack.yaml"),
    show_default=True,
    help="The intent.",
)
profile_option = click.option(
    "--profile",
    type=click.Choice(["auto", "cpu", "v100"]),
    default="auto",
    show_default=True,
    help="The class of host to resolve for; auto: what the stack names, else what was detected.",
)
detected_option = click.option(
    "--detected",
    type=click.Choice(["cpu", "v100"]),
    help="The class that the host was seen to be.",
)
source_option = click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The project's checkout.  [default: the one this command runs from]",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="volta-stack")
def cli() -> None:
    """Plan what to serve, turn stack.yaml into a lock, and a lock into what hosts install."""


cli.add_command(plan)


@cli.command()
@stack_option
@profile_option
@detected_option
@source_option
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here.")
def lock(
    stack_file: Path, profile: str, detected: str | None, source: Path | None, output: Path | None
) -> None:
    """Resolve the stack to exact versions and hashes (YAML)."""
    stack = read_lockable(stack_file)
    _, source_digest = pack_source(source or find_source())
    data = make_lock(stack, choose_profile(stack, profile, detected), source_digest).encode()
    if output:
        try:
            write(output, data)
        except OSError as error:
            raise StackError(f"{output}: {error.strerror}") from error
    else:
        sys.stdout.buffer.write(data)


@cli.command()
@stack_option
@profile_option
@detected_option
@source_option
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
def bundle(
    stack_file: Path, profile: str, detected: str | None, source: Path | None, out: Path
) -> None:
    """Write lock, source and requirements to OUT/RELEASE; prints a JSON summary."""
    stack = read_lockable(stack_file)
    chosen = choose_profile(stack, profile, detected)
    report = write_bundle(stack, chosen, source or find_source(), out.resolve())
    click.echo(msgspec.json.encode(report))


@cli.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("host_class", metavar="CLASS")
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def pack(bundle: Path, host_class: str, wheel: Path) -> None:
    """Add to BUNDLE what hosts of CLASS unpack, with the WHEEL that one of them built.

    Kernels for GPUs are audited first, as by `volta-doctor arch --require`.
    """
    click.echo(pack_release(bundle, host_class, wheel))


@cli.command()
@click.argument("lock", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("models", type=click.Path(file_okay=False, path_type=Path))
@click.option("--check", is_flag=True, help="Change nothing; say what would be fetched.")
def fetch(lock: Path, models: Path, check: bool) -> None:
    """Fetch the model of LOCK to the directory MODELS, by hash; prints a JSON summary.

    What an interrupted call has fetched is not fetched again, and what is there is verified. The
    doctor then judges the checkpoint: one that cannot be served here is refused. HF_ENDPOINT names
    a mirror of the Hugging Face hub, HF_TOKEN a key to it.
    """
    from volta_provision.fetch import fetch_locked

    done = fetch_locked(lock, models.resolve(), check)
    click.echo(msgspec.json.encode({"changed": bool(done), "done": done}))


def choose_profile(stack: Stack, asked: str, detected: str | None) -> Profile:
    """Return the asked profile, else the stack's, else the detected one."""
    for profile in (asked, stack.profile, detected):
        if profile and profile != "auto":
            return cast(Profile, profile)
    raise click.UsageError("the profile is auto everywhere: give --profile cpu or --profile v100")


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence, not in a traceback."""
    open_standard_streams()
    try:
        sys.exit(cli(prog_name="volta-stack", standalone_mode=False))
    except StackError as error:
        click.echo(f"volta-stack: {error}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        error.show()
        sys.exit(64)
    except click.Abort:
        sys.exit(130)
