"""The conditions of a message's `when` and `unless`; catalog/why/README.md lists them."""

from collections.abc import Callable

from volta_doctor.facts.topo import SELF
from volta_doctor.why.case import Case
from volta_doctor.why.vocabulary import ABOUT_GPUS


def _several_gpus(case: Case) -> bool:
    nvml = case.facts.nvml.data
    return (case.flags.tensor_parallel_size or 1) > 1 or bool(nvml and len(nvml.gpus) > 1)


def _no_nvlink(case: Case) -> bool:
    topo = case.facts.topo.data
    if topo and len(topo.links) > 1:
        return not any(cell.startswith("NV") for row in topo.links for cell in row if cell != SELF)
    return bool(case.lines(r"(?:no|without|no active) nvlink|PCIe.{0,24}no NVLink", 1))


NAMED: dict[str, Callable[[Case], bool]] = {
    "volta": lambda case: case.card != "other",
    "named-volta": lambda case: case.card == "volta",
    "other-card": lambda case: case.card == "other",
    "several-gpus": _several_gpus,
    "no-nvlink": _no_nvlink,
    "about-gpus": lambda case: bool(case.lines(ABOUT_GPUS, 1)),
}


def is_late(condition: str) -> bool:
    """Say whether it asks for what other messages say."""
    return condition.startswith(("found:", "symptom:"))


def holds(case: Case, condition: str) -> bool:
    """Say whether a condition holds in a case. Raises ValueError for one that there is not."""
    if condition.startswith("/") and condition.endswith("/"):
        return bool(case.lines(condition[1:-1], 1))
    if condition.startswith("found:"):
        return case.found(condition.removeprefix("found:"))
    if condition.startswith("symptom:"):
        return condition.removeprefix("symptom:") in case.symptoms
    if condition not in NAMED:
        raise ValueError(f"no condition {condition!r}; there are {', '.join(NAMED)}")
    return NAMED[condition](case)
