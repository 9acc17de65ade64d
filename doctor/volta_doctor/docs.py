"""Writes what is derived: pages of docs/, parts of others, and the schemas of the reports.

python -m volta_doctor.docs
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from volta_doctor import examples
from volta_doctor.arch.report import ArchReport
from volta_doctor.catalog import Row, checks
from volta_doctor.catalog.model import model_checks
from volta_doctor.preflight.report import ModelReport
from volta_doctor.report import Report
from volta_doctor.why import document
from volta_runtime.checkpoint.formats import document as formats

WHY_MD = Path(__file__).parents[2] / "docs/why.md"
FORMATS_MD = Path(__file__).parents[2] / "docs/formats.md"
MODEL_MD = Path(__file__).parents[2] / "docs/model.md"
CHECKS_MD = Path(__file__).parents[2] / "docs/checks.md"
SCHEMA_JSON = Path(__file__).parent / "report/schema.json"
ARCH_SCHEMA_JSON = Path(__file__).parent / "arch/schema.json"
MODEL_SCHEMA_JSON = Path(__file__).parent / "preflight/schema.json"

_HEAD = """# Checks

<!-- Made by `python -m volta_doctor.docs` from doctor/volta_doctor/catalog/checks/. -->

`volta-doctor check` makes these checks. Each gives one of six verdicts: *ok*, *info*, *warn*,
*fail*, *unknown* (a fact that it needs could not be had; the reason is told) or *skip* (it does
not apply to this host). Checks marked *Volta* are skipped on a host without a Volta card, those
marked *NVIDIA* on one without any NVIDIA card; those marked *active* load the GPU and run only
with `--active`.

A site adds its own as [plugins](plugins.md) and bears with a problem by a [waiver](waivers.md).
[doctor.md](doctor.md) tells how to use the doctor.

`volta-doctor model` makes [checks of a checkpoint](#checks-of-a-checkpoint), further down.
"""
_MODEL_HEAD = """# Checks of a checkpoint

`volta-doctor model PATH` makes these ([model.md](model.md)). What a check needs: the *checkpoint*'s
files; its *modules*, as headers describe their tensors; its *architecture*, from config.json or
GGUF's metadata; *scales*, the values of its scale tensors; an *engine* (`--engine`), *cards*
(`--gpu`, or those of this host) or the *host* that is to serve: without these three it is skipped.
What cannot be read of a checkpoint is *unknown*.
"""

# What Markdown would take for markup, or HTML for a tag.
_SPECIAL = re.compile(r"([\\`*<>\[\]]|(?<!\w)_|_(?!\w))")


def checks_md() -> str:
    """Return docs/checks.md."""
    of_hosts = [(row.id, row) for row in checks().values()]
    # An id that judges hosts too has its heading there already.
    of_models = [
        (f"{name} of a model" if name in checks() else name, row)
        for name, row in model_checks().items()
    ]
    return "\n".join([_HEAD, *_part(of_hosts), _MODEL_HEAD, *_part(of_models)])


def _part(rows: list[tuple[str, Row]]) -> Iterable[str]:
    """Tell rows by area, under the heading that each is given."""
    areas = list(dict.fromkeys(row.area for _, row in rows))
    for area in areas:
        links = [
            f"[{heading}](#{heading.replace(' ', '-')})"
            for heading, row in rows
            if row.area == area
        ]
        yield f"- **{area}**: {', '.join(links)}"
    yield ""
    for area in areas:
        yield f"## {area.capitalize()}\n"
        yield from (_section(heading, row) for heading, row in rows if row.area == area)


def _section(heading: str, row: Row) -> str:
    names = {"volta": " *Volta*", "nvidia": " *NVIDIA*"}
    marks = names.get(row.gpu, "") + " *active*" * row.active
    lines = [f"### {heading}\n", f"{_text(row.title[0].upper() + row.title[1:])}.{marks}\n"]
    lines += [f"- **{level}**: {_text(text)}" for level, text in row.rule.items()]
    also = f"; uses: {', '.join(row.uses)}" if row.uses else ""
    lines.append(f"- needs: {', '.join(row.needs)}{also}")
    if row.hides:
        lines.append(f"- hides: {', '.join(row.hides)}")
    if row.blinds:
        lines.append(f"- hides checks that cannot tell for want of: {', '.join(row.blinds)}")
    lines.append(f"- fix (risk: {row.risk}): {_text(row.fix)}")
    if row.volta_note:
        lines.append(f"- on Volta: {_text(row.volta_note)}")
    lines.append(f"- source: {_text(row.source)}\n")
    return "\n".join(lines)


def _text(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)


def schema_json(report: type[Report | ArchReport] = Report) -> str:
    """Return the JSON Schema of a report, that of `volta-doctor check` where none is named."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(schema | msgspec.json.schema(report), indent=2) + "\n"


if __name__ == "__main__":
    CHECKS_MD.write_text(checks_md())
    WHY_MD.write_text(document.refreshed(WHY_MD.read_text()))
    FORMATS_MD.write_text(formats.markdown())
    MODEL_MD.write_text(examples.refreshed(MODEL_MD.read_text()))
    SCHEMA_JSON.write_text(schema_json())
    ARCH_SCHEMA_JSON.write_text(schema_json(ArchReport))
    MODEL_SCHEMA_JSON.write_text(schema_json(ModelReport))
