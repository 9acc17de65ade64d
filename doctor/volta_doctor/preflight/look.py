"""From a path to a subject: reads the headers and scales, and finds out which cards are meant."""

from pathlib import Path

from volta_doctor.catalog.engines import Engine
from volta_doctor.facts.model import Facts
from volta_doctor.facts.serve.engines import Flags
from volta_doctor.preflight.cards import of_facts
from volta_doctor.preflight.subject import Cards, Subject
from volta_runtime.checkpoint.checkpoint import inspect
from volta_runtime.checkpoint.scales import read_scales


def look(
    path: Path,
    engine: Engine | None,
    flags: Flags,
    named: Cards | None,
    host: Facts,
    all_scales: bool = False,
) -> Subject:
    """Return what is at a path that exists, and how and where it is to be served.

    Without `named` cards those of the host are meant; a host without any is not the one to serve.
    """
    checkpoint = inspect(path)
    cards = named or of_facts(host)
    facts = host if cards and not named else Facts()
    return Subject(checkpoint, read_scales(checkpoint, all_scales), engine, flags, cards, facts)
