"""Quantisation configs, tensors and layers against each other: what the reader found, told."""

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.preflight.checks._faults import faults, findings
from volta_doctor.preflight.registry import model_check
from volta_doctor.preflight.subject import Subject
from volta_doctor.words import several
from volta_runtime.checkpoint.module import Module
from volta_runtime.checkpoint.quantization import dialect_of

# Other words of --quantization that engines take for a method: kernels of vLLM, and 1Cat-vLLM's.
_TAKEN_FOR = {
    "awq": ("moe_wna16", "auto_awq", "awq_triton", "cpu_awq", "turbomind"),
    "gptq": ("moe_wna16", "marlin", "auto_gptq", "turbomind"),
    "compressed-tensors": ("nvfp4", "w4afp8", "w8a8_int8", "w8a8_fp8"),
    "modelopt": ("nvfp4", "petit_nvfp4"),
    "nvfp4": ("modelopt", "modelopt_fp4"),
    "fbgemm_fp8": ("fp8",),
    "fp8": ("fbgemm_fp8", "modelopt"),
    "mxfp4": ("gpt_oss_mxfp4",),
    "": (),
}
# Methods whose tensors must be in the checkpoint already.
_STORED = ("awq", "gptq", "auto-round", "compressed-tensors", "modelopt", "gguf")


def _judge(subject: Subject, row: Row, held: int, looked: str, none: str) -> list[Finding]:
    """Return a row's findings; without any, ok with what was looked at, or that nothing was."""
    found = faults(subject, row)
    if found or held:
        return found or findings(subject, row, looked)
    return [row.ok(none)]


@model_check("quant-config")
def config(subject: Subject, row: Row) -> list[Finding]:
    """Types and words of the fields."""
    configs = subject.checkpoint.quantization.configs
    names = " and ".join(f"{config.file.name} ({config.method})" for config in configs)
    none = "No config says that the weights are quantised."
    return _judge(subject, row, len(configs), f"Read from {names}", none)


@model_check("quant-conflict")
def conflict(subject: Subject, row: Row) -> list[Finding]:
    """Each module's tensors against its promise."""
    modules = subject.checkpoint.modules.values()
    coded = sum(module.quantised for module in modules)
    looked = f"{several(coded, 'quantised module')} of {len(modules):,} are as their config says"
    if other := _other_method(subject):
        told, held = other
        text = (
            f"--quantization is {told}, and the checkpoint's method is {held}: engines refuse a"
            " flag that names another method than the config."
        )
        return [*faults(subject, row), row.fail(text, subject="--quantization")]
    return _judge(subject, row, coded, looked, "No module is quantised, and no config says so.")


def _other_method(subject: Subject) -> tuple[str, str] | None:
    """Return the flag's method and the checkpoint's, where no engine takes one for the other.

    A method that engines quantise with while they load (fp8, bitsandbytes) fits a dense checkpoint.
    """
    flag = (subject.flags.quantization or "").lower()
    checkpoint = subject.checkpoint
    method, asked = checkpoint.quantization.method, dialect_of(flag)
    if checkpoint.contents.kind == "gguf":
        method = "gguf"
    elif not method and checkpoint.quantization.faults:
        return None  # a method that could not be read, which is told
    if flag in ("", "auto", "none") or asked == method or flag in _TAKEN_FOR.get(method, ()):
        return None
    if not method and asked not in _STORED:
        return None
    return flag, method or "none"


@model_check("group-size-config")
def group_size(subject: Subject, row: Row) -> list[Finding]:
    """Groups as the shapes show them."""
    grouped = [
        module.group
        for module in subject.checkpoint.modules.values()
        if module.group and module.group[1] > 0
    ]
    sizes = ", ".join(map(str, sorted({columns for _, columns in grouped})))
    looked = f"{several(len(grouped), 'module')} in groups of {sizes}"
    return _judge(subject, row, len(grouped), looked, "No module has its scales in groups.")


@model_check("scale-direction")
def direction(subject: Subject, row: Row) -> list[Finding]:
    """Names of global scales."""
    roles = [
        part.direction
        for module in subject.checkpoint.modules.values()
        for part in (module.format.parameters if module.format else ())
        if part.role == "global" and part.name in module.tensors
    ]
    verbs = " and ".join(sorted(f"{role} by" for role in {*roles} if role))
    looked = f"{several(len(roles), 'module')} to {verbs} their global scales"
    return _judge(subject, row, len(roles), looked, "No module has a global scale.")


@model_check("scale-layout")
def layout(subject: Subject, row: Row) -> list[Finding]:
    """Each format's tensors and shapes."""
    coded = sum(module.quantised for module in subject.checkpoint.modules.values())
    looked = f"{several(coded, 'quantised module')} have all tensors of their formats"
    return _judge(subject, row, coded, looked, "No module is quantised.")


@model_check("fused-schemes")
def fused(subject: Subject, row: Row) -> list[Finding]:
    """Parts that engines join."""
    if subject.checkpoint.contents.kind == "gguf":
        return [row.skip("GGUF files mix types within a layer, and llama.cpp joins none.")]
    coded = sum(module.quantised for module in subject.checkpoint.modules.values())
    looked = "The parts of every layer that engines join are alike"
    return _judge(subject, row, coded, looked, "No module is quantised.")


@model_check("tensor-set")
def tensor_set(subject: Subject, row: Row) -> list[Finding]:
    """Layers and experts against their like."""
    modules = subject.checkpoint.modules.values()
    layers = len(subject.checkpoint.architecture.layers)
    told = f" for the {layers} layers of config.json" if layers else ""
    return findings(subject, row, f"{several(len(modules), 'module')}{told}, none missing")


@model_check("head-tied")
def head(subject: Subject, row: Row) -> list[Finding]:
    """lm_head and tie_word_embeddings."""
    if subject.checkpoint.contents.kind == "gguf":
        tied = subject.checkpoint.architecture.tied
        return [
            row.ok("The head is the embedding." if tied else "The head is a tensor of its own.")
        ]
    return findings(subject, row, "The tensors fit what config.json says of tie_word_embeddings")


@model_check("attn-4bit")
def attention(subject: Subject, row: Row) -> Finding:
    """Bits of the projections beside linear attention."""
    sides = [
        module
        for module in subject.checkpoint.modules.values()
        if {"self_attn", "linear_attn"} & {*module.name.split(".")} and len(module.shape) == 2
    ]
    if not any("linear_attn" in module.name for module in sides):
        return row.skip("No layer has linear attention.")
    small = [module for module in sides if module.quantised and _bits(module) < 5]
    if not small:
        return row.ok(f"{several(len(sides), 'projection')} of attention, all of 8 bits or more.")
    text = (
        f"{len(small)} of {several(len(sides), 'projection')} of attention have 4 bits; one such"
        " model never closed its think block on a V100, where builds with 8 bits there did."
    )
    return row.info(text, subject=small[0].name, count=len(small))


def _bits(module: Module) -> float:
    return module.format.bits if module.format else 16
