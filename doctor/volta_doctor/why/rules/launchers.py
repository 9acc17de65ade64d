"""Who launched a kernel that the card has no code for: torch, an extension, or another engine."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row, compat
from volta_doctor.findings import Evidence, Finding
from volta_doctor.logs.text import Line, Text
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.rules.torch_versions import torches

_SYMPTOM = "no-kernel-image"
_ABOVE = 60  # lines of a traceback that are looked at (ours)
_NEAR = 15  # lines around the error in which an engine logs its own name (ours)
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+')
_LORA = re.compile(r"lora/punica|punica_kernels|_punica_C|dispatch_bgmv|lora/layers\.py|add_lora")
_LORA_FLAGS = r"--enable-lora|--lora-modules|enable_lora=True|max_lora_rank="
_ENGINES = {
    "ggml": r"ggml[_-]|llama[_.-]cpp|llama-server|llama_|\bollama|koboldcpp|llamafile|whisper\.cpp",
    "TurboMind": r"\[TM\]|turbomind/",
    "MLC": r"mlc_llm|\btvm[./]",
    "ONNX Runtime": r"onnxruntime",
    "PaddlePaddle": r"paddle(?:paddle|/)|enforce not met",
    "CTranslate2": r"ctranslate2|faster[_-]whisper",
}
# Directories of packages that bring device code of their own, and torch's way to call it.
_EXTENSION = re.compile(
    r"/(?P<package>vllm/_custom_ops|vllm/vllm_flash_attn|flash_attn\w*|xformers|bitsandbytes|awq"
    r"|auto_gptq|gptqmodel|exllamav?\w*|flashinfer|sgl_kernel|causal_conv1d|mamba_ssm|apex"
    r"|deepspeed/ops|torch_extensions|lmcache|aphrodite/_custom_ops)[/.]"
)
_OP_CALL = re.compile(r"torch\.ops\.(?P<namespace>\w+)\.(?P<op>\w+)")
_TORCH_CALL = re.compile(
    r"\btorch\.(?!ops\b|compile\b|load\b|cuda\.(?:synchronize|graph))\w+[\w.]*\("
    r"|\.(?:to|cuda|half|float|fill_|zero_|normal_|uniform_|copy_|contiguous|masked_fill)\("
)
# cuobjdump --list-elf
_CUBIN = re.compile(r"ELF file\s+\d*:\s+\S+\.sm_(\d+)[af]?\.cubin")


class Launcher(NamedTuple):
    """The diagnosis that it stands for, what was found, and the line that shows it."""

    check_id: str
    what: str
    evidence: Evidence


def launcher(case: Case) -> Launcher | None:
    """Return who launched the kernel, from the lines above the error; None without a trace."""
    if not case.shows(_SYMPTOM):
        return None
    first = case.symptoms[_SYMPTOM][1].evidence[0]
    for text in case.texts:
        if text.name == first.source:
            return _above(text, first.line or 0)
    return None


def _above(text: Text, at: int) -> Launcher | None:
    trace = [line for line in text.lines if at - _ABOVE <= line.number <= at]
    near = [line for line in text.lines if abs(line.number - at) <= _NEAR]
    for line in reversed(trace):
        if _LORA.search(line.text):
            return Launcher("punica-lora-arch", "vLLM's LoRA kernels", text.evidence(line))
    for engine, pattern in _ENGINES.items():
        for line in near:
            if re.search(pattern, line.text, re.IGNORECASE):
                return Launcher("backend-arch", engine, text.evidence(line))
    return _of_python(text, trace)


def _of_python(text: Text, trace: list[Line]) -> Launcher | None:
    frames = [number for number, line in enumerate(trace) if _FRAME.search(line.text)]
    for index in reversed(frames):
        line = trace[index]
        code = trace[index + 1].body if index + 1 < len(trace) else ""
        if match := _OP_CALL.search(code):
            name = f"the operator {match['namespace']}.{match['op']}"
            return Launcher("ext-arch", name, text.evidence(trace[index + 1]))
        if match := _EXTENSION.search(line.text):
            return Launcher("ext-arch", match["package"].split("/")[0], text.evidence(line))
        if index == frames[-1] and _TORCH_CALL.search(code):
            return Launcher("torch-arch", "torch itself", text.evidence(trace[index + 1]))
        if "/torch/" not in line.text:
            return None
    return None


@rule("punica-lora-arch")
def lora(case: Case, row: Row) -> Iterator[Finding]:
    """The trace goes through the LoRA layers, or adapters are all that differs."""
    if case.found("torch-arch") or _torch(case) is False:
        return  # then these are only the first of all kernels that fail
    found = launcher(case)
    if found and found.check_id == "punica-lora-arch":
        yield row.fail("The kernel that fails is one of vLLM's LoRA kernels.", found.evidence)
        return
    seen = case.lines(_LORA_FLAGS, 1)
    if seen and case.shows(_SYMPTOM) and found is None:
        finding = row.fail("The server that fails serves LoRA adapters.", *seen)
        yield likely(finding, "vLLM's kernels for adapters were built for 8.0 and newer alone")


@rule("backend-arch")
def backend(case: Case, row: Row) -> Iterator[Finding]:
    """An engine with device code of its own launched it."""
    found = launcher(case)
    if found and found.check_id == "backend-arch" and not case.found("backend-arch"):
        yield row.fail(f"The CUDA code of {found.what} has none for the card.", found.evidence)


@rule("torch-arch")
def torch_call(case: Case, row: Row) -> Iterator[Finding]:
    """A function of torch launched it, without any extension."""
    found = launcher(case)
    if found and found.check_id == "torch-arch" and _torch(case) is None:
        finding = row.fail("A kernel of torch itself has no code for the card.", found.evidence)
        yield likely(
            finding, "the failing line calls torch alone; the text does not name its build"
        )


@rule("ext-arch")
def extension(case: Case, row: Row) -> Iterator[Finding]:
    """An extension launched it, or torch is known to have the code, so an extension lacks it."""
    if not case.shows(_SYMPTOM) or case.found("torch-arch"):
        return
    has, found = _torch(case), launcher(case)
    if has is False:
        return
    if found and found.check_id == "ext-arch":
        finding = row.fail(f"It was {found.what} that has no code for the card.", found.evidence)
        unsure = "the failing line is the extension's; the text does not name torch's build"
        yield finding if has else likely(finding, unsure)
    elif has and case.card == "volta" and (found is None or found.check_id == "torch-arch"):
        names = [torch for torch in torches(case) if torch.volta]
        text = f"torch {names[0].name} has sm_70 code: it is an extension that has none."
        finding = row.fail(text, names[0].evidence)
        yield likely(finding, "the text does not name the library that launched the kernel")


@rule("ext-arch")
def listed_code(case: Case, row: Row) -> Iterator[Finding]:
    """A listing of cuobjdump without the card's architecture."""
    if case.card == "other":
        return
    archs: dict[str, Evidence] = {}
    for match, evidence in case.matching(_CUBIN):
        archs.setdefault(match[1], evidence)
    volta = compat().volta.compute_capability.replace(".", "")
    if archs and volta not in archs:
        named = ", ".join(f"sm_{arch}" for arch in sorted(archs, key=int))
        seen = list(archs.values())[:3]
        yield row.fail(f"The listed library has code for {named}, not sm_{volta}.", *seen)


def _torch(case: Case) -> bool | None:
    """Say whether the torch that is named has sm_70 code; None where that is not known."""
    known = [torch.volta for torch in torches(case) if torch.volta is not None]
    return None if not known else all(known)
