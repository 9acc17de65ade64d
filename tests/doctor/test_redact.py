"""A redacted snapshot: nothing that names the site, everything that makes the verdict."""

import json
import re
from pathlib import Path

import msgspec.inspect
import pytest
import yaml

from volta_doctor.catalog import checks
from volta_doctor.checks import CHECKS
from volta_doctor.facts.model import decode, encode
from volta_doctor.judge import judge
from volta_doctor.profile import detect
from volta_doctor.redact import GONE, kind_of, redacted, table

CASES = Path(__file__).parents[1] / "data/doctor/checks"


@pytest.fixture(scope="session")
def text_fields(fact_fields):
    """(struct, field) of every field that holds free strings."""
    free = msgspec.inspect.StrType
    return [
        key for key, made_of in fact_fields.items() if any(isinstance(t, free) for t in made_of)
    ]


def test_every_text_of_a_snapshot_is_classified(text_fields):
    bare = [f"{s.__name__}.{f}" for s, f in text_fields if kind_of(s, f) is None]
    assert not bare, f"say in redact.yaml what these hold: {', '.join(bare)}"


def test_the_table_names_no_field_that_is_not_there(text_fields):
    known = {(base.__name__, f) for s, f in text_fields for base in s.__mro__}
    listed = {(s, f) for s, kinds in table().structs.items() for fs in kinds.values() for f in fs}
    assert not listed - known
    names = [struct.__name__ for struct in {struct for struct, _ in text_fields}]
    assert len(names) == len(set(names)), "two structs of one name"
    for struct, kinds in table().structs.items():
        fields = [f for names in kinds.values() for f in names]
        assert len(fields) == len(set(fields)), struct


def verdicts(snapshot, sections=None):
    """The verdicts of all checks, or of those that look at one of the sections."""
    facts = snapshot.facts
    rows = [checks()[check_id] for check_id in CHECKS]
    looking = [r for r in rows if sections is None or sections & {*r.needs, *r.uses}]
    found = judge(facts, looking, detect(facts))
    return [(f.id, f.status.value, f.count, f.folded_under) for f in found]


def test_the_verdict_stays_on_a_healthy_host(snapshot_with):
    whole = snapshot_with({})
    assert verdicts(redacted(whole)) == verdicts(whole)


@pytest.mark.parametrize("check_id", CHECKS)
def test_the_verdict_stays_on_a_faulty_host(check_id, snapshot_with):
    path = CASES / f"{check_id}.yaml"
    for case in yaml.safe_load(path.read_text()) if path.exists() else []:
        whole = snapshot_with(case["facts"])
        changed = set(case["facts"])
        assert verdicts(redacted(whole), changed) == verdicts(whole, changed), case["case"]


SITE = {
    "host": {
        "hostname": "rack7.corp.example",
        "cmdline": "BOOT_IMAGE=/vmlinuz root=UUID=9f1d0c52-1111-2222-3333-444455556666 ro iommu=pt"
        " ip=10.1.2.3 console=ttyS0 -- --peer 10.1.2.4",
    },
    "nvml": {
        "gpus": {
            0: {"serial": "0321018045678", "uuid": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"},
            1: {"serial": "0321018099999", "uuid": "GPU-89aaaaaa-d72c-4106-c12f-20bd9faed9f6"},
        }
    },
    "kernel_log": {
        "lines": {
            3: {"time": 1.0, "text": "systemd[1]: Set hostname to <rack7>."},
            4: {"time": 2.0, "text": "eth0: 00:11:22:33:44:55 renamed, 10.1.2.3 fe80::1:2"},
            5: {"time": 3.0, "text": "NVRM: GPU at 00:11:22:33:44:55 of alice on rack7 is fine"},
        }
    },
    "serve": {
        "servers": {
            0: {
                "argv": ["/home/alice/venv/bin/vllm", "--port", "8000", "--served-model-name=acme"],
                "env": {"CUDA_VISIBLE_DEVICES": "GPU-8932,GPU-89aa", "A": "/home/bo/x:/srv/alice"},
                "unit": "vllm-globex.service",
                "name": "vllm-globex.service",
                "source": "/etc/systemd/system/vllm-globex.service.d/10.conf",
                "user": "alice",
                "home": "/home/alice",
                "prefix": "/home/alice/venv",
            }
        }
    },
    "smi": "rack7: cannot reach 2001:db8:77::5 as alice@corp.example by lb9.corp.example",
    "packages": {
        "repositories": {
            0: {
                "uri": "https://me:pass@mirror.acme.test/cuda/",
                "keys": ["eb69 Jane Doe <jane@acme.test>", "3bf8 cudatools <cudatools@nvidia.com>"],
            }
        }
    },
    "release": {"manifest": {"url": "http://10.1.2.3:8000"}},
    "service": {"health": {"url": "http://10.1.2.3:8000/health"}},
}
NAMES = [
    "rack7",
    "corp.example",
    "9f1d0c52",
    "10.1.2.3",
    "10.1.2.4",
    "fe80::",
    "db8:77",
    "00:11:22:33:44:55",
]
NAMES += [
    "0321018",
    "8932f9",
    "89aaaa",
    "GPU-8932",
    "alice",
    "globex",
    "acme",
    "/home/bo/",
    "lb9",
    "mirror",
    "Jane",
    "pass@",
]


def test_nothing_of_the_site_is_left(snapshot_with):
    whole = snapshot_with(SITE)
    data = encode(redacted(whole)).decode()
    assert all(name in encode(whole).decode() for name in NAMES)
    assert [name for name in NAMES if name in data] == []
    assert json.loads(data)["redacted"] is True
    assert decode(data.encode()) == redacted(whole)


def test_the_same_thing_gets_the_same_stand_in(snapshot_with):
    facts = redacted(snapshot_with(SITE)).facts
    server = facts.serve.data.servers[0]
    assert server.user == "user1"
    assert server.name == server.unit == "unit1.service"
    assert server.source == "/etc/systemd/system/unit1.service.d/10.conf"
    assert server.home == "/home/user1"
    assert server.prefix == "/home/user1/venv"
    assert server.argv == [
        "/home/user1/venv/bin/vllm",
        "--port",
        "8000",
        f"--served-model-name={GONE}",
    ]
    assert server.env["A"] == "/home/user2/x:/srv/user1"
    first, second = (gpu.uuid for gpu in facts.nvml.data.gpus)
    one, two = server.env["CUDA_VISIBLE_DEVICES"].split(",")
    assert first.startswith(one) and not second.startswith(one)
    assert second.startswith(two) and not first.startswith(two)
    assert len(first) == len("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")
    url = facts.release.data.manifest.url
    assert url.startswith("http://198.18.0.")
    assert facts.service.data.health.url == f"{url}/health"
    assert facts.smi.error.startswith("host1: cannot reach 2001:db8::1 as ")
    lines = [line.text for line in facts.kernel_log.data.lines[3:]]
    assert lines == [GONE, GONE, "NVRM: GPU at 02:00:00:00:00:01 of user1 on host1 is fine"]
    (repository, *_) = facts.packages.data.repositories
    assert re.fullmatch(r"https://host\d/cuda/", repository.uri)
    assert repository.keys == [f"eb69 {GONE}", "3bf8 cudatools <cudatools@nvidia.com>"]
    assert "iommu=pt" in facts.host.data.cmdline.split()
    assert f"ip={GONE}" in facts.host.data.cmdline.split()
    assert facts.host.data.cmdline.endswith(f" -- {GONE}")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("localhost.localdomain", "localhost, a.example.com", "localhost, a.example.com"),
        ("", "a b", "a b"),
        ("n7", "n7 is too short to look for", "n7 is too short to look for"),
        ("node1", "node1: xnode1, node11, node1-a", "host1: xnode1, node11, host1-a"),
        ("node1.corp.com", "node1, a.corp.com, corp.com, b.com", "host1, host2, domain1, b.com"),
        ("node1.nvidia.com", "node1, a.nvidia.com", "host1, a.nvidia.com"),
    ],
)
def test_names_of_hosts(snapshot_with, name, text, said):
    assert (
        redacted(snapshot_with({"host": {"hostname": name}, "smi": text})).facts.smi.error == said
    )


def test_versions_and_bus_ids_are_no_addresses(snapshot_with):
    text = "580.95.05 at 0000:1a:00.0, VBIOS 88.00.4F.00.09, 10:11:16, 127.0.0.1, ::1"
    assert redacted(snapshot_with({"smi": text})).facts.smi.error == text


def test_twice_redacted_is_the_same(snapshot_with):
    once = redacted(snapshot_with(SITE))
    assert verdicts(redacted(once)) == verdicts(once)
