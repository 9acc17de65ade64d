"""Engines that have left Volta behind."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.checks.arch_list import parse
from volta_doctor.checks.environments import volta_arch
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import likely, possible, rule

_ENGINE_LIST = re.compile(r"CUDA Archs: (?P<value>\d[\d. af+PTX]*);")
_V1_ALONE = re.compile(
    r"(?:V1 LLM engine \(v|vLLM v?|vllm-openai:v?|vllm==|vllm |version )(?P<version>0\.\d+)\b"
)
_V1_ALONE_FROM = 11  # vLLM 0.11 removed the V0 engine (its release notes)
_ENGINE_STOPS = r"EngineCore failed to start|Engine core initialization failed|EngineCore hit an"
_TRITON = r"triton/(?:compiler|runtime|backends)|triton\.compiler|torch/_inductor|InductorError"


@rule("engine-drops-volta")
def engine_build(case: Case, row: Row) -> Iterator[Finding]:
    """The report of vLLM of the architectures that its image was built for."""
    if case.card == "other" or not case.shows("no-kernel-image"):
        return
    for match, evidence in case.matching(_ENGINE_LIST):
        entries = parse("TORCH_CUDA_ARCH_LIST", match["value"])
        if int(volta_arch()) not in [entry.number for entry in entries]:
            finding = row.fail(f"vLLM's image is built for {match['value'].strip()}.", evidence)
            yield likely(finding, "it reports the variable that its image carries")
            return


@rule("engine-drops-volta")
def v1_alone(case: Case, row: Row) -> Iterator[Finding]:
    """A vLLM that has the V1 engine alone, and stops in Triton's compiler on a Volta card."""
    stops = case.lines(_ENGINE_STOPS, 1)
    if case.card != "volta" or not stops or not case.lines(_TRITON, 1):
        return
    for match, evidence in case.matching(_V1_ALONE):
        if int(match["version"].split(".")[1]) >= _V1_ALONE_FROM:
            said = f"vLLM {match['version']} has the V1 engine alone, whose kernels are Triton's."
            finding = row.fail(said, evidence, *stops)
            yield possible(finding, "Triton names 8.0 as its minimum; the text shows no more")
            return
