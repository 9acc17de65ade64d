"""What the documents say of the doctor is so."""

import re

import pytest
import yaml

from volta_doctor import docs, profile
from volta_doctor.catalog import checks
from volta_doctor.report import FORMATS


@pytest.fixture
def page(repo):
    return (repo / "docs/doctor.md").read_text()


def blocks(text, kind):
    return [yaml.safe_load(block) for block in re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)]


def test_every_format_profile_and_verb_is_told(page, tmp_path):
    from volta_doctor.cli import cli

    verbs = [name for name, verb in cli.commands.items() if not verb.hidden]
    for name in (*FORMATS, *profile.names(tmp_path), *verbs):
        assert re.search(rf"\b{name}\b", page), name


def test_the_profile_in_the_document_is_one(page, tmp_path):
    (tmp_path / "rack.yaml").write_text(re.findall(r"```yaml\n(# /etc.*?)```", page, re.DOTALL)[0])
    assert profile.load("rack", tmp_path).expect.gpus == 4


def test_alerts_use_series_that_there_are(page, report):
    import io

    from prometheus_client.parser import text_string_to_metric_families

    finding = checks()["iommu"].fail("x")
    text = FORMATS["prometheus"](report(finding), io.StringIO(), False)
    series = {
        name: {label for sample in family.samples for label in sample.labels}
        for family in text_string_to_metric_families(text)
        for name in [family.name]
    }
    (groups,) = (block["groups"] for block in blocks(page, "yaml") if "groups" in block)
    rules = groups[0]["rules"]
    assert len(rules) == 3
    for rule in rules:
        name, labels = re.search(r"(volta_doctor_\w+)(?:\{(\w+)=)?", rule["expr"]).groups()
        assert name in series
        assert labels is None or labels in series[name]
        used = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert used <= series[name] | {"instance"}


def test_links_lead_somewhere(repo):
    for path in (repo / "docs").glob("*.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_page_of_checks_has_every_id_and_no_stray_markup():
    text = docs.checks_md()
    for row in checks().values():
        assert f"### {row.id}\n" in text
        assert f"(#{row.id})" in text
    assert re.search(r"(?<!\\)<(?!!--)", text) is None
