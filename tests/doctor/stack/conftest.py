"""Servers of a host."""

from collections.abc import Callable

import pytest

from volta_doctor.facts import serve
from volta_doctor.facts.serve import ServeFacts, Server


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that says which servers the host has."""

    def set_servers(*servers: Server, problem: str = "") -> None:
        facts = ServeFacts(servers=list(servers), problem=problem)
        monkeypatch.setattr(serve, "find", lambda _probe: facts)

    set_servers()
    return set_servers
