"""Engines that have left Volta behind."""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Finding
from volta_doctor.why.case import Case
from volta_doctor.why.rules import possible, rule

_V1_ALONE = re.compile(
    r"(?:V1 LLM engine \(v|vLLM v?|vllm-openai:v?|vllm==|vllm |version )(?P<version>0\.\d+)\b"
)
_V1_ALONE_FROM = 11  # vLLM 0.11 removed the V0 engine (its release notes)
_ENGINE_STOPS = r"EngineCore failed to start|Engine core initialization failed|EngineCore hit an"
_TRITON = r"triton/(?:compiler|runtime|backends)|triton\.compiler|torch/_inductor|InductorError"


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
