"""Writes what is derived in docs/why.md: the answers in its examples, and the causes by area."""

import re

from volta_doctor import examples
from volta_doctor.catalog.why import diagnoses, rows

_CAUSES = re.compile(r"(<!-- causes: .*? -->\n).*?(<!-- end -->)", re.DOTALL)


def refreshed(page: str) -> str:
    """Return the page with the answers that `why` gives now, and the causes it knows now."""
    return _CAUSES.sub(
        lambda match: f"{match[1]}\n{causes()}\n{match[2]}", examples.refreshed(page)
    )


def causes() -> str:
    """Return the causes by area: what a text must show for each, and why that carries over."""
    known, entries = rows(), diagnoses()
    areas = list(dict.fromkeys(known[name].area for name in known if name in entries))
    parts = []
    for area in areas:
        parts.append(f"### {area.capitalize()}\n")
        for name, entry in entries.items():
            if known[name].area == area:
                parts.append(
                    f"- **{name}** ({known[name].title}): {' '.join(entry.relies.split())}"
                )
        parts.append("")
    return "\n".join(parts)
