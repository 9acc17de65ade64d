"""Which profile a host gets, and what a profile file may say."""

import msgspec
import pytest

from volta_doctor import profile
from volta_doctor.catalog import compat
from volta_doctor.profile import ProfileError, detect, load, names

SWITCH = {"bus_id": "0000:b0:00.0", "device": "0x1ac2", "pci_class": "0x068000"}


def cards(*devices, switches=0):
    gpus = [
        {"bus_id": f"0000:{i:02x}:00.0", "device": f"0x{device}", "pci_class": "0x030200"}
        for i, device in enumerate(devices)
    ]
    return {"devices": gpus + [SWITCH] * switches}


@pytest.mark.parametrize(
    ("devices", "switches", "product", "name"),
    [
        (["1db5"] * 4, 0, "", "v100-sxm2"),
        (["1db1"] * 8, 0, "", "dgx-1"),
        (["1db1"] * 8, 0, "DGX-1 with V100", "dgx-1"),
        (["1db1"] * 7, 0, "", "v100-sxm2"),
        (["1db1"] * 7, 0, "DGX-1 with V100", "dgx-1"),
        (["1db5"] * 7, 0, "DGX-1 with V100-32", "dgx-1"),
        ([], 0, "DGX-1 with V100-32", "dgx-1"),
        (["15f9"] * 8, 0, "DGX-1", "nvidia"),
        (["1db8"] * 16, 12, "", "dgx-2"),
        (["1db8"] * 15, 12, "", "dgx-2"),
        (["1db8"] * 16, 11, "", "dgx-2"),
        (["1db8"] * 15, 11, "", "v100-sxm3"),
        (["1db8"] * 15, 11, "NVIDIA DGX-2", "dgx-2"),
        (["1db8"] * 16, 12, "NVIDIA DGX-2H", "dgx-2"),
        (["1db6"], 0, "", "v100-pcie"),
        (["1db6", "1db5"], 0, "", "v100"),
        (["1db6", "20b0"], 0, "", "v100"),
        (["20b0"] * 8, 6, "", "nvidia"),
        ([], 0, "", "cpu"),
    ],
)
def test_detection(snapshot_with, tmp_path, devices, switches, product, name):
    sections = {"modules": {"proc_version": None}, "release": "none"}
    sections |= {"pci": cards(*devices, switches=switches), "host": {"product_name": product}}
    found = detect(snapshot_with(sections).facts, site=tmp_path)
    assert found.name == name, found.reason
    if name == "dgx-1":
        assert found.expect.gpus == 8
        assert ("DMI" in found.reason) == bool(product)
        assert product or found.reason.endswith("; recognised by 8 GPUs, 0 NVSwitches")


def test_a_dgx_1_whose_bus_cannot_be_read_is_still_one(snapshot_with, tmp_path):
    sections = {"pci": "the disk is on fire", "host": {"product_name": "DGX-1 with V100"}}
    found = detect(snapshot_with(sections).facts, site=tmp_path)
    assert (found.name, found.gpu) == ("dgx-1", "volta")
    assert "the disk is on fire" in found.reason


def test_a_site_s_profile_comes_before_all_others(snapshot_with, tmp_path):
    (tmp_path / "rack.yaml").write_text(
        "{title: ours, gpu: volta, detect: [{devices: ['1db5']}], expect: {gpus: 4, nvlinks: 0}}"
    )
    facts = snapshot_with({"host": {"product_name": "DGX-1 with V100"}}).facts
    found = detect(facts, site=tmp_path)
    assert (found.name, found.expect.gpus) == ("rack", 4)
    assert f"recognised by {tmp_path}/rack.yaml" in found.reason
    assert "rack" in names(tmp_path)
    assert detect(facts, site=None).name == "dgx-1"
    forced = detect(facts, "rack", site=tmp_path)
    assert (forced.name, forced.forced, forced.expect.nvlinks) == ("rack", True, 0)


def test_a_site_s_profile_of_the_same_name_takes_the_place_of_a_built_in_one(
    snapshot_with, tmp_path
):
    (tmp_path / "v100-sxm2.yaml").write_text("{title: ours, gpu: volta, expect: {gpus: 2}}")
    facts = snapshot_with({}).facts
    assert detect(facts, site=tmp_path).name == "v100"  # ours has no way to be recognised
    assert detect(facts, "v100-sxm2", site=tmp_path).expect.gpus == 2


def test_a_file_can_be_named(snapshot_with, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("{title: mine, gpu: volta, expect: {gpus: 2}}")
    found = detect(snapshot_with({}).facts, str(path), site=tmp_path / "none")
    assert (found.name, found.gpu, found.expect.gpus) == ("mine", "volta", 2)
    assert "detected: v100-sxm2" in found.reason


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title: x", "missing required field `gpu`"),
        ("{title: x, gpu: amd}", "$.gpu"),
        ("{title: x, gpu: volta, expect: {gpu: 8}}", "`gpu` - at `$.expect`"),
        ("{title: x, gpu: volta, expect: {gpus: eight}}", "$.expect.gpus"),
        ("{title: x, gpu: volta, detect: {gpus: 8}}", "$.detect"),
        ("title: [", "expected"),
    ],
)
def test_a_faulty_file_is_named_with_the_field(tmp_path, text, says):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError, match=r"bad\.yaml") as error:
        load(str(path))
    assert says in str(error.value)


def test_a_faulty_file_of_the_site_is_told_and_not_passed_over(snapshot_with, tmp_path):
    (tmp_path / "bad.yaml").write_text("title: x")
    with pytest.raises(ProfileError, match=r"bad\.yaml"):
        detect(snapshot_with({}).facts, site=tmp_path)


def test_an_unknown_name_lists_those_there_are(tmp_path):
    with pytest.raises(ProfileError, match="no profile 'dgx-3'; there are cpu, dgx-1, dgx-2"):
        load("dgx-3", tmp_path)


def test_built_in_profiles_name_cards_of_the_catalogue(tmp_path):
    for name in names(tmp_path):
        definition = load(name, tmp_path)
        assert definition.detect, name
        for way in definition.detect:
            assert set(way.devices) <= set(compat().volta.names), name


def test_the_readme_tells_every_key():
    text = (profile.files("volta_doctor") / "profiles/README.md").read_text()
    for struct in (profile.Definition, profile.Way, profile.Expect):
        for field in msgspec.structs.fields(struct):
            assert field.name in text
