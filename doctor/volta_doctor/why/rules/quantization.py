"""Quantisation: what two configs, a config and the tensors, or two shapes say of one model."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.model import group_sizes, modelopt, quantization, tensor_names
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.vocabulary import FLAGS

_PACKED = re.compile(r"\.(?:weight_packed|qweight|weight_scale(?:_inv|_2)?)$")
_NOT_ON_VOLTA = frozenset(
    ("awq", "compressed-tensors", "fbgemm_fp8", "fp8", "marlin", "modelopt", "mxfp4", "quark")
)
_LOADS = re.compile(r"load_weights|weight_loader|_load_w13|_load_w2|load_merged_column")
_MISFIT = re.compile(r"exceeds dimension|must match the size")
_SHAPES = (
    r"start \(\d+\) \+ length \((?P<made>\d+)\) exceeds dimension size \((?P<stored>\d+)\)",
    r"size of tensor a \((?P<made>\d+)\) must match the size of tensor b \((?P<stored>\d+)\)",
)
_STOCK = re.compile(r"vllm serve|vLLM API server|vllm\.entrypoints|vLLM Version|\bvllm==")
_FORK = re.compile(r"1cat.?vllm|vllm_sm70_|flash_attn_v100|turbomind", re.IGNORECASE)
_E4M3 = re.compile(r"type fp8e4nv not supported in this architecture", FLAGS)
_FP8_WEIGHTS = re.compile(
    r"per_token_group_quant|w8a8_block_fp8|quantization=fp8|Fp8(?:Linear|Config)|\w-FP8\b", FLAGS
)
_FP8_CACHE = re.compile(r"kv[-_]cache[-_]dtype[='\": ]{1,4}fp8", FLAGS)
_PACKING = (2, 4, 8)  # values in one byte or word


@rule("quant-conflict")
def two_configs(case: Case, row: Row) -> Iterator[Finding]:
    """config.json and hf_quant_config.json describe one checkpoint."""
    ours = [(config, q) for config in case.configs if (q := quantization(config))]
    theirs = [(config, q) for config in case.configs if (q := modelopt(config))]
    for config, mine in ours:
        for other, algorithm in theirs:
            places = (config.evidence, other.evidence)
            method, algo = str(mine.get("quant_method", "")), str(algorithm["quant_algo"])
            said = mine.get("quant_algo")
            if method and not method.startswith("modelopt"):
                yield row.fail(
                    f"config.json says {method}, hf_quant_config.json says ModelOpt {algo}.",
                    *places,
                )
            elif said and str(said) != algo:
                yield row.fail(f"config.json says {said}, hf_quant_config.json {algo}.", *places)
            sizes, size = group_sizes(mine), algorithm.get("group_size")
            if sizes and isinstance(size, int) and size > 0 and size not in sizes:
                yield row.fail(
                    f"config.json has group size {sizes[0]}, hf_quant_config.json {size}.", *places
                )
            left, out = mine.get("ignore"), algorithm.get("exclude_modules")
            if isinstance(left, list) and isinstance(out, list) and {*left} != {*out}:
                differing = sorted(map(str, {*left} ^ {*out}))[0]
                yield row.fail(f"Only one config leaves {differing} unquantised.", *places)


@rule("quant-conflict")
def config_and_tensors(case: Case, row: Row) -> Iterator[Finding]:
    """The names of tensors show which layers are packed."""
    if not case.configs:
        return
    names = tensor_names(case)
    packed = {_PACKED.sub("", name) for name in names if _PACKED.search(name)}
    whole = any(isinstance(config.content.get("weight_map"), dict) for config in case.configs)
    for config in case.configs:
        fields = quantization(config)
        if not names or "weight_map" in config.content:
            continue
        if not fields and packed and "num_hidden_layers" in config.content and not _other(case):
            layer = min(packed)
            yield row.fail(f"{layer} is packed, but config.json has no quantization_config.")
        if fields and whole and not packed and fields.get("quant_method") != "bitsandbytes":
            yield row.fail(
                f"config.json says {fields.get('quant_method')}, but the index has nothing packed.",
                config.evidence,
            )
        for name in fields.get("ignore") or fields.get("modules_to_not_convert") or []:
            if name in packed:
                yield row.fail(f"{name} is to be left unquantised, but is packed.", config.evidence)


def _other(case: Case) -> bool:
    return any(modelopt(config) or quantization(config) for config in case.configs)


@rule("quant-config-not-applied")
def packed_into_plain(case: Case, row: Row) -> Iterator[Finding]:
    """A packed weight is 2, 4 or 8 times narrower than the plain one that the loader made."""
    if not case.lines(_MISFIT, 1) or not case.lines(_LOADS, 1):
        return
    for pattern in _SHAPES:
        groups = case.groups(pattern)
        if not groups:
            continue
        made, stored = int(groups["made"]), int(groups["stored"])
        ratio = max(made, stored) / max(1, min(made, stored))
        if ratio not in _PACKING:
            continue
        way = (
            f"The loader made room for {made} values and the checkpoint has {stored}, {ratio:g}"
            " times fewer: the weight is packed and the layer is a plain one."
            if made > stored
            else f"The loader made room for {made} values and the checkpoint has {stored},"
            f" {ratio:g} times more: the layer is a quantised one and the weight is plain."
        )
        yield likely(
            row.fail(way, *case.lines(pattern, 2)), "only packing changes a size by such a factor"
        )


@rule("quant-volta")
def method_and_engine(case: Case, row: Row) -> Iterator[Finding]:
    """Stock vLLM on a Volta card has kernels for GPTQ, bitsandbytes and GGUF only."""
    if case.card != "volta" or case.found("quant-volta") or case.found("sm70-backend-off"):
        return
    if not case.lines(_STOCK, 1) or case.lines(_FORK, 1):
        return
    for config in case.configs:
        method = str(quantization(config).get("quant_method", ""))
        if method in _NOT_ON_VOLTA:
            finding = row.fail(
                f"vLLM has no kernels for {method} on Volta.",
                *(case.lines(r'"quant_method', 1) or [config.evidence]),
            )
            yield likely(finding, "the text does not show that the engine refused the model")


@rule("quant-volta")
def fp8_weights(case: Case, row: Row) -> Iterator[Finding]:
    """Triton refuses E4M3, and it is the weights that are FP8."""
    refused, weights = case.lines(_E4M3, 1), case.lines(_FP8_WEIGHTS, 1)
    if refused and weights and not case.lines(_FP8_CACHE, 1):
        finding = row.fail(
            "The weights are FP8 (E4M3), which Triton compiles for sm_89 and newer only.",
            *dict.fromkeys([*refused, *weights]),
        )
        yield likely(finding, "the line that refuses does not name the weights")
