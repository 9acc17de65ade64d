"""Collectors side by side: cut off, isolated, and never raising."""

import os
import signal
import time

import msgspec
import pytest

from volta_doctor.facts.gather import COLLECTORS, OPT_IN, Collector, gather
from volta_doctor.facts.model import Facts, Snapshot, SnapshotError, decode, encode
from volta_doctor.facts.pci import PciFacts
from volta_doctor.probe import CannotLook, Probe


def test_every_section_has_a_collector():
    assert set(COLLECTORS) | set(OPT_IN) == set(Facts.__struct_fields__) - {"expect"}


def refuse(_probe):
    raise CannotLook("/dev/x: Permission denied")


def hang(_probe):
    time.sleep(60)
    raise CannotLook("long after everyone has left")


def die(_probe):
    os._exit(1)


@pytest.mark.parametrize("own_process", [False, True])
def test_no_collector_takes_another_down(own_process):
    collectors = {
        "pci": Collector(lambda _: PciFacts(devices=[]), own_process=own_process),
        "host": Collector(refuse, own_process=own_process),
        "modules": Collector(lambda _: 1 / 0, own_process=own_process),
        "service": Collector(hang, limit_s=0.3, own_process=own_process),
        "release": Collector(hang, limit_s=0.3, own_process=own_process),
    }
    started = time.monotonic()
    facts = gather(Probe(), None, collectors).facts
    assert time.monotonic() - started < 5
    assert facts.pci.data == PciFacts(devices=[])
    assert facts.host.error == "/dev/x: Permission denied"
    assert (
        facts.modules.error == "modules: the collector failed: ZeroDivisionError: division by zero"
    )
    assert facts.service.error == "service: no answer within 0.3 s"
    assert facts.release.error == "release: no answer within 0.3 s"
    assert facts.dkms.error == "the snapshot has no such section"


def test_a_collector_whose_process_dies():
    def crash(_probe):
        os.kill(os.getpid(), signal.SIGKILL)

    collectors = {
        "pci": Collector(die, own_process=True),
        "host": Collector(crash, own_process=True),
    }
    facts = gather(Probe(), None, collectors).facts
    assert facts.pci.error == "pci: the collector's process died"
    assert facts.host.error == "host: the collector's process died of SIGKILL"


def test_a_collector_whose_process_dies_in_the_middle_of_its_answer(monkeypatch):
    whole = msgspec.json.encode
    monkeypatch.setattr("msgspec.json.encode", lambda section: whole(section)[:-1])
    collectors = {"pci": Collector(lambda _: PciFacts(devices=[]), own_process=True)}
    assert gather(Probe(), None, collectors).facts.pci.error == "pci: the collector's process died"


def test_what_a_library_prints_reaches_nobody(capfd):
    def chatty(_probe):
        os.write(1, b"libfoo: warning\n")
        os.write(2, b"libfoo: warning\n")
        return PciFacts(devices=[])

    facts = gather(Probe(), None, {"pci": Collector(chatty, own_process=True)}).facts
    assert facts.pci.ok
    assert capfd.readouterr() == ("", "")


def test_only_the_sections_asked_for():
    assert gather(Probe(), {"pci"}).facts.nvml.error == "the snapshot has no such section"


def test_a_snapshot_of_this_host_survives_json():
    snapshot = gather(Probe())
    assert decode(encode(snapshot)) == snapshot


def test_newer_keys_are_tolerated_and_another_schema_is_not(healthy):
    newer = healthy.replace(b'"schema": 1', b'"schema": 1, "future": [1]', 1)
    newer = newer.replace(b'"hostname":', b'"flavour": {}, "hostname":', 1)
    assert isinstance(decode(newer), Snapshot)
    with pytest.raises(SnapshotError, match="has schema 2, this volta-doctor reads schema 1"):
        decode(healthy.replace(b'"schema": 1', b'"schema": 2', 1))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"ram_bytes": ', b'"ram_bytes": "x", "_": ', r"\$.facts.host.data.ram_bytes"),
        (b'"ok": true', b'"ok": false', "must say its error"),
        (b'"taken": "2026', b'"token": "2026', "taken"),
        (b"{", b"[", "not a snapshot"),
    ],
)
def test_a_bad_snapshot_names_the_field(healthy, old, new, says):
    with pytest.raises(SnapshotError, match=says):
        decode(healthy.replace(old, new, 1))


def test_facts_have_no_any():
    # a typo in a section's type would switch its validation off
    msgspec.json.schema(Facts)
