"""`volta-doctor set-aside`: the step of fixes that takes something out of a cache's use."""

import click


@click.command("set-aside", hidden=True)
@click.option("--within", required=True, metavar="DIR", help="The cache that PATH is in.")
@click.option("--inode", required=True, type=int, help="What PATH was when it was looked at.")
@click.option("--back", is_flag=True, help="Give it its name back.")
@click.argument("path")
def set_aside(path: str, within: str, inode: int, back: bool) -> None:
    """Rename a part of a cache to PATH.stale-INODE, if it is still what it was."""
    from volta_doctor import aside

    try:
        new = (aside.put_back if back else aside.set_aside)(path, within, inode)
    except aside.Refused as reason:
        raise click.ClickException(f"nothing done: {reason}") from None
    except OSError as error:
        raise click.ClickException(f"nothing done: {path}: {error.strerror}") from None
    click.echo(new)
