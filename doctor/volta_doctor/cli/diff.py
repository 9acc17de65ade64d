"""`volta-doctor diff OLD NEW`: what changed since it worked."""

from typing import TYPE_CHECKING

import click

from volta_doctor.cli.options import Named, Scope, scoped

if TYPE_CHECKING:
    from volta_doctor.cli.looking import Look
    from volta_doctor.diff import Change, Turn


@click.command()
@click.argument("old", type=Named(), metavar="OLD")
@click.argument("new", type=Named(), metavar="NEW")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@scoped("select", "ignore", "profile", "waivers", "plugins")
@click.pass_context
def diff(context: click.Context, scope: Scope, old: str, new: str, form: str) -> None:
    """Tell what changed between two snapshots of a host.

    First the facts, then the findings that turned. Errors that grow are counted from OLD on, as by
    check --snapshot NEW --since OLD. The exit code is that of NEW.
    """
    from dataclasses import replace

    from volta_doctor import diff as differ
    from volta_doctor.cli import looking
    from volta_doctor.cli.output import show, stdout

    if old == new == "-":
        raise click.UsageError("OLD and NEW cannot both be stdin")
    before = looking.look(replace(scope, snapshot=old))
    newer = looking.read(new)
    counted = looking.since(newer, before.snapshot)
    after = looking.judged(
        replace(scope, snapshot=new), counted if counted.facts.history.ok else newer
    )
    facts = differ.changes(before.snapshot.facts, newer.facts)
    turns = differ.turns(before.report.findings, after.report.findings)
    told = (_json if form == "json" else _text)(before, after, facts, turns)
    stdout(form)
    show(told)
    context.exit(after.report.summary.exit_code)


def _text(before: "Look", after: "Look", facts: "list[Change]", turns: "list[Turn]") -> str:
    from volta_doctor.words import printable

    lines = [
        f"{name}: {look.report.host or 'unnamed host'}, {look.report.taken}, {look.report.tool}"
        for name, look in (("old", before), ("new", after))
    ]
    for section in dict.fromkeys(change.section for change in facts):
        lines += ["", f"{section}:"]
        lines += [f"  {change.text}" for change in facts if change.section == section]
    for kind in dict.fromkeys(turn.kind for turn in turns):
        of_kind = [turn for turn in turns if turn.kind == kind]
        lines += ["", f"findings, {kind}:"]
        lines += [f"  {turn.text}" for turn in of_kind if not turn.folded_under]
        for cause in dict.fromkeys(turn.folded_under for turn in of_kind if turn.folded_under):
            count = sum(turn.folded_under == cause for turn in of_kind)
            lines.append(f"  and {count} more, explained by {cause}")
    if not facts and not turns:
        lines += ["", "Nothing changed."]
    was, now = before.report.summary.verdict, after.report.summary.verdict
    return printable("\n".join([*lines, "", f"{now} (before: {was})"]))


def _json(before: "Look", after: "Look", facts: "list[Change]", turns: "list[Turn]") -> str:
    import msgspec

    sides = {
        name: {key: getattr(look.report, key) for key in ("host", "taken", "tool", "summary")}
        for name, look in (("old", before), ("new", after))
    }
    whole = {"schema": 1, **sides, "changes": facts, "findings": turns}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode()
