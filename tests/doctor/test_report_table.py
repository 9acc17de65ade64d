"""The report as people read it."""

import io
import subprocess

import pytest
from msgspec import structs

from volta_doctor.catalog import checks
from volta_doctor.findings import Evidence, Step, Waived
from volta_doctor.report import FORMATS
from volta_doctor.words import few

ROWS = checks()


def found(check_id, status, message="It is so.", *evidence, subject="host", **more):
    return getattr(ROWS[check_id], status)(message, *evidence, subject=subject, **more)


@pytest.fixture
def show(report, monkeypatch):
    def render(*findings, columns=80, verbose=False, notes=()):
        monkeypatch.setenv("COLUMNS", str(columns))
        return FORMATS["table"](report(*findings, notes=notes), io.StringIO(), verbose)

    return render


def flat(text):
    return " ".join(text.split())


DRIVER = found(
    "driver-loaded", "fail", "No module.", Evidence("/proc/driver/nvidia/version", "absent")
)
LOG = Evidence("/var/log/kern.log", "NVRM: Xid (PCI:0000:1a:00): 79", 42)


def test_verdict_then_problem_evidence_fix_and_what_follows(show):
    text = show(DRIVER, found("smi-rc", "unknown", "no answer"), found("iommu", "ok"))
    lines = text.splitlines()
    assert (
        lines[0] == "gpu1: failures (1 fail, 1 unknown, 1 ok; 1 of them folded under their cause)"
    )
    assert lines[1] == "profile v100-sxm2: 2 x Tesla V100 SXM2 32GB (10de:1db5)"
    start = lines.index("FAIL driver-loaded")
    assert lines[start + 1 : start + 4] == [
        "  No module.",
        "  seen: /proc/driver/nvidia/version: absent",
        "  fix: Install the proprietary R580 driver for the running kernel and load the",
    ]
    assert "(risk: reboot) hides: smi-rc Next:" in flat(text)
    assert "volta-doctor explain driver-loaded" in lines[-2]
    assert "iommu" not in text


def test_evidence_is_told_as_grep_does(show):
    text = show(found("xid-fatal", "fail", "GPU lost.", LOG))
    assert "  seen: /var/log/kern.log:42: NVRM: Xid (PCI:0000:1a:00): 79" in text.splitlines()


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_it_fits_the_terminal_in_plain_ascii(show, columns, verbose):
    long = [Evidence("/sys/devices/" + "x" * 90, "y" * 100) for _ in range(9)]
    gpus = [found("ecc-mode", "warn", f"Off {i}.", subject=f"GPU-{i}" * 9) for i in range(16)]
    text = show(found("iommu", "warn", "word " * 60, *long), *gpus, DRIVER, columns=columns)
    assert max(map(len, text.splitlines())) <= columns
    assert text.isascii()
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_colour_is_for_terminals_and_no_color_is_heeded(report, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;31m" in FORMATS["table"](report(DRIVER), Terminal(), False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "31m" not in FORMATS["table"](report(DRIVER), Terminal(), False)


def test_one_paragraph_for_one_check_on_many_gpus(show):
    gpus = [found("ecc-mode", "warn", "ECC is off.", subject=f"GPU-{i}") for i in range(16)]
    text = show(*gpus)
    assert text.count("ECC is off.") == text.count("fix: ") == 1
    assert "on: GPU-0, GPU-1, GPU-2 and 13 more" in text
    assert "GPU-15" in show(*gpus, verbose=True)
    hot = [found("temp-gpu", "warn", f"It is at {84 + i} C.", subject=f"GPU-{i}") for i in range(9)]
    text = show(*hot)
    assert text.count("fix: ") == 1
    assert "GPU-0: It is at 84 C." in text
    assert "and 6 more (-v)" in text


def test_one_paragraph_for_one_reason_not_to_know(show):
    reason = "dmesg: Operation not permitted"
    ids = ("xid-fatal", "xid-63", "xid-app", "oom-kill", "pcie-aer")
    text = show(*(found(check_id, "unknown", reason) for check_id in ids))
    assert text.count(reason) == 1
    assert "UNKNOWN xid-fatal, xid-63, xid-app and 2 more" in text
    assert flat("sudo volta-doctor check  5 checks lack the rights to look") in flat(text)
    assert "sudo" not in show(found("smi-rc", "unknown", "install another root with --root"))


def test_steps_can_be_copied_into_a_shell(show):
    run = ["nvidia-smi", "-i", "GPU-0", "-pm", "1", "--note", "two words", "x" * 30]
    step = Step(run=run, undo=["nvidia-smi", "-pm", "0"])
    text = show(found("persistence", "warn", steps=[step]), columns=50)
    command = text[text.index("  run: ") : text.index("\n\nNext:")]
    assert command.count(" \\\n") == 1
    told = command.removeprefix("  run: ")
    ran = subprocess.run(["bash", "-c", f"printf '%s\\n' {told}"], capture_output=True, text=True)
    assert ran.stdout.splitlines() == run
    assert "undo: " not in text
    assert "volta-doctor fix" in text
    assert "undo: nvidia-smi -pm 0" in show(
        found("persistence", "warn", steps=[step]), verbose=True
    )


def test_the_same_step_on_many_gpus_is_told_a_few_times(show):
    gpus = [
        found("persistence", "warn", steps=[Step(run=["nvidia-smi", "-i", f"GPU-{i}", "-pm", "1"])])
        for i in range(8)
    ]
    assert show(*gpus).count("run: ") == 3
    assert "and 5 more (volta-doctor fix)" in show(*gpus)
    assert show(*gpus, verbose=True).count("run: ") == 8


def test_a_file_to_write_is_named_and_shown_on_request(show):
    step = Step(write="/etc/modprobe.d/x.conf", content="blacklist nouveau\n")
    finding = found("nouveau", "fail", steps=[step])
    assert "write: /etc/modprobe.d/x.conf" in show(finding)
    assert "    blacklist nouveau" in show(finding, verbose=True).splitlines()


def test_a_waived_problem_is_shown_as_such(show):
    waived = Waived(reason="spare part is ordered", expires="2026-12-31", by="ann")
    text = show(structs.replace(found("iommu", "warn"), waived=waived), found("acs", "ok"))
    assert text.startswith("gpu1: healthy (1 ok, 1 waived)")
    assert "WAIVED iommu" in text
    assert "warn, waived by ann until 2026-12-31: spare part is ordered" in text
    assert "fix: " not in text
    assert "Nothing has to be done." in text


def test_verbose_tells_everything_and_the_folded_under_their_cause(show):
    well = found("driver-loaded", "ok", subject="GPU-2")
    folded = found("smi-rc", "unknown", "no answer")
    lines = show(DRIVER, well, folded, found("iommu", "ok"), verbose=True).splitlines()
    assert lines.count("  hides: unknown smi-rc: no answer") == 1
    assert "UNKNOWN smi-rc" not in lines
    assert "OK iommu" in lines


def test_notes_are_told(show):
    assert "note: waivers.yaml: expired" in show(DRIVER, notes=["waivers.yaml: expired"])


def test_brackets_in_a_log_are_text_not_markup(show):
    assert "[red] task [/x] blocked" in show(found("hung-task", "warn", "[red] task [/x] blocked"))


def test_a_host_without_a_name(report):
    nameless = structs.replace(report(DRIVER), host="")
    assert FORMATS["table"](nameless, io.StringIO(), False).startswith("unnamed host: failures")


def test_few_never_ends_with_one_more():
    assert few(["a", "b", "c", "d"]) == "a, b, c, d"
    assert few(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    assert few(["a", "b", "c", "d", "e"], by="; ") == "a; b; c; and 2 more"
    assert few(["a", "b", "c"], None) == "a, b, c"
