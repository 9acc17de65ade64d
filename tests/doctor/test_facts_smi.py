"""nvidia-smi -q -x of drivers from R418 to R580 as NVML's facts, and in place of NVML."""

import msgspec
import pytest

from volta_doctor.facts import smi
from volta_doctor.facts.model import Section
from volta_doctor.facts.nvml import GpuProcess, NvmlError, NvmlFacts
from volta_doctor.facts.smi import table
from volta_doctor.facts.smi.stand_in import for_nvml as stand_in

MIB = 1 << 20
NOT_SUPPORTED = NvmlError(3, "Not Supported")
# What the XML does not say.
ELSEWHERE = ("nvlinks", "utilization_samples")


@pytest.fixture
def sample(repo):
    def read(name: str) -> NvmlFacts:
        text = (repo / f"tests/data/fakegpu/smi/{name}.xml").read_text()
        return table.facts_of(table.root(text))

    return read


@pytest.fixture(scope="session")
def fakesmi():
    import fakesmi

    return fakesmi


def test_r418(sample):
    facts = sample("v100-sxm2-16gb.418")
    (gpu,) = facts.gpus
    assert (facts.driver_version, facts.cuda_version, facts.device_count) == ("418.56", 10010, 1)
    assert (gpu.part_number, gpu.compute_capability) == ("900-2G503-0300-000", "7.0")
    assert gpu.event_reasons == 0x4 | 0x8 | 0x80
    assert gpu.compute_mode == "exclusive_process"
    assert (gpu.memory.reserved, gpu.memory.used) == (None, 11 * MIB)
    assert (gpu.power.limit_mw, gpu.power.enforced_mw) == (300_000, 300_000)
    pages = gpu.retired_pages
    assert (len(pages.single_bit), len(pages.double_bit), pages.pending) == (2, 1, True)
    assert (gpu.ecc.volatile_uncorrected, gpu.ecc.aggregate_corrected) == (1, 345)
    assert gpu.compute_processes == [GpuProcess(pid=3498)]
    assert gpu.graphics_processes == [
        GpuProcess(pid=1860, memory=21 * MIB),
        GpuProcess(pid=3498),
    ]


def test_r460(sample):
    (gpu,) = sample("v100s-pcie-32gb.460").gpus
    assert gpu.name == "Tesla V100S-PCIE-32GB"
    assert (gpu.persistence, gpu.event_reasons, gpu.utilization.gpu) == (False, 0, 97)
    assert gpu.compute_processes == [GpuProcess(pid=4242, memory=31685 * MIB)]


def test_r470_with_ecc_off(sample):
    (gpu,) = sample("v100-pcie-32gb.470").gpus
    assert (gpu.ecc.current, gpu.ecc.pending) == (False, True)
    assert gpu.ecc.volatile_uncorrected == NOT_SUPPORTED
    assert gpu.clocks_max.graphics == 1380


def test_r535_with_a_sensor_that_fails(sample):
    first, second = sample("v100-sxm2-32gb-x2.535").gpus
    assert first.event_reasons == 0x20
    assert first.memory.reserved == 258 * MIB
    assert second.temperature.gpu == NvmlError(999, "Unknown Error")
    assert second.power.draw_mw == NvmlError(999, "Unknown Error")
    assert (second.index, second.temperature.memory) == (1, 33)


def test_r550_says_what_nvml_says_of_the_same_card(sample, repo):
    # both files are from one public dump
    (gpu,) = msgspec.to_builtins(sample("v100-sxm2-16gb.550"))["gpus"]
    fake = repo / "tests/data/fakegpu/v100-sxm2-16gb-x8.json"
    expected = msgspec.json.decode(fake.read_bytes())["gpus"][0]
    for name in ELSEWHERE:
        del expected[name]
    del expected["inforom"]["valid"]
    # the dump is rounded to MiB, and its free memory does not add up
    assert gpu["memory"].pop("free") == 16145 * MIB
    del expected["memory"]["free"]
    assert gpu == expected


def test_r580(sample):
    facts = sample("v100-sxm2-32gb.580")
    (gpu,) = facts.gpus
    assert facts.cuda_version == 13000
    assert gpu.power.draw_mw == 44_500  # the average is N/A on Volta
    assert gpu.driver_model.current == NOT_SUPPORTED


def test_a_card_of_another_generation(sample, host, repo):
    (gpu,) = sample("h200.580").gpus
    assert gpu.compute_capability == "9.0"
    assert gpu.power.draw_mw == 79_700
    assert gpu.ecc.volatile_uncorrected == gpu.ecc.aggregate_corrected == 0
    assert gpu.retired_pages.pending == NOT_SUPPORTED
    text = (repo / "tests/data/fakegpu/smi/h200.580.xml").read_text()
    (of_smi,) = smi.collect(host(commands={"nvidia-smi -q -x": text})).gpus
    assert of_smi.remapped_rows.startswith("corr 0, corr_inactive 0, unc 0")
    assert "histogram" not in of_smi.remapped_rows


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("[GPU is lost]", NvmlError(15, "GPU is lost")),
        ("[GPU requires reset]", NvmlError(16, "GPU requires reset")),
        ("hot", NvmlError(999, "nvidia-smi says 'hot'")),
        ("N/A", NOT_SUPPORTED),
    ],
)
def test_what_stands_in_place_of_a_value(repo, written, error):
    text = (repo / "tests/data/fakegpu/smi/v100-sxm2-32gb.580.xml").read_text()
    text = text.replace("<gpu_temp>37 C<", f"<gpu_temp>{written}<")
    (gpu,) = table.facts_of(table.root(text)).gpus
    assert gpu.temperature.gpu == error


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found", "<nvidia_smi_log>", "</nvidia_smi_log><nvidia_smi_log>", "<a/>"],
)
def test_what_is_no_such_xml(text):
    assert table.root(text) is None


def test_a_warning_around_the_xml_does_no_harm(repo):
    text = (repo / "tests/data/fakegpu/smi/v100-sxm2-32gb.580.xml").read_text()
    warned = f"WARNING: infoROM is corrupted at gpu 0000:1A:00.0\n{text}\nbye"
    assert table.root(warned).findtext("driver_version") == "580.95.05"


@pytest.mark.parametrize("name", ["dgx-2", "v100-pcie-32gb-x2", "ecc-dbe-vol", "gpu-reset"])
def test_a_fake_host_s_nvidia_smi_says_what_its_nvml_says(fakesmi, name):
    import snapshots

    fake = snapshots.load(name)
    facts = table.facts_of(table.root(fakesmi.to_xml(fake.nvml)))
    for said, expected in zip(msgspec.to_builtins(facts)["gpus"], fake.nvml["gpus"], strict=True):
        for group in ("pci", "pcie", "ecc", "power", "temperature", "clocks", "clocks_max"):
            expected[group] = {
                reading: NvmlErrorText(value) if isinstance(value, dict) else value
                for reading, value in expected[group].items()
            }
            assert said[group] == expected[group], group


class NvmlErrorText(dict):
    """An error reading, whatever its text."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and other.get("error") == self["error"]

    __hash__ = None


@pytest.fixture
def answering(host, repo):
    text = (repo / "tests/data/fakegpu/smi/v100-sxm2-32gb.580.xml").read_text()
    return host(commands={"nvidia-smi -q -x": text})


def test_it_stands_in_where_nvml_hangs(answering):
    hung = Section(ok=False, error="nvml: no answer within 10 s", seconds=10.0)
    section = stand_in(answering, hung)
    assert section.ok
    assert section.data.source == "nvidia-smi -q -x"
    assert section.data.problem == "nvml: no answer within 10 s"
    assert section.data.gpus[0].ecc.current is True


def test_it_stands_in_where_the_binding_finds_no_library(answering):
    facts = NvmlFacts(init_error=NvmlError(12, "NVML Shared Library Not Found"))
    facts = stand_in(answering, Section(ok=True, data=facts)).data
    assert facts.init_error is None
    assert facts.problem == "nvmlInit: NVML Shared Library Not Found (12)"


def test_nvml_itself_comes_first(answering):
    section = Section(ok=True, data=NvmlFacts(device_count=0))
    assert stand_in(answering, section) is section
    assert answering.asked == []


@pytest.mark.parametrize("answer", [None, (9, "NVIDIA-SMI has failed", ""), "<nvidia_smi_log/>"])
def test_where_neither_answers_nvml_s_reason_stays(host, answer):
    commands = {} if answer is None else {"nvidia-smi -q -x": answer}
    failed = Section(ok=False, error="nvml: the collector's process died of SIGSEGV")
    assert stand_in(host(commands=commands), failed) is failed
