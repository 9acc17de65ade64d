"""Groups of cards that stand still: which way between the cards is to blame.

A worker that waits says only that it waits. What decides stands beside it: whether the cards have
NVLink, whether they spin (busy, at the power of a card that waits), and whose collective runs.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from volta_doctor.catalog import Row
from volta_doctor.facts.nvml import value
from volta_doctor.facts.topo import SELF
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.conditions import NAMED
from volta_doctor.why.rules import likely, possible, rule
from volta_doctor.why.rules.experiments import WRONG, Switch, decided, gone_with, named
from volta_doctor.why.vocabulary import FLAGS, HANGS

_STALLED = "no-answer-from-a-worker"  # the symptom
# Not a hang of a group: what says so of a tool, a task or a disk.
_OTHER_HANG = re.compile(r"nvidia-smi (?:itself )?hang|hung_task|blocked for more than", FLAGS)
_ENGINE = re.compile(r"\b(?:vllm|sglang|sgl[_-]|1cat|aphrodite)", FLAGS)
# Servers and trainers that spread one model over several cards.
_SPREADS = re.compile(
    r"\b(?:lmdeploy|turbomind|torchrun|deepspeed|megatron|accelerate launch|trtllm|tensorrt|tgi\b)",
    FLAGS,
)
_CUSTOM_OFF = re.compile(
    r"--disable-custom-all-reduce|disable_custom_all_reduce['\"]?[=:] ?True"
    r"|Custom allreduce is disabled",
    FLAGS,
)
_NO_PEERS = re.compile(r"lacks GPU P2P capability|NCCL_P2P_DISABLE(?:=| set by environment to )1")
# Programs and flags that make NCCL run.
_NCCL = re.compile(
    r"all_reduce_perf|\bnccl|init_process_group|torch\.distributed|torchrun"
    r"|p2pBandwidthLatencyTest|simpleP2P|tensor[-_ ]parallel|--tp\b",
    FLAGS,
)
# Two or more cards for one model, as flags, counts and logs say it.
_GROUP = re.compile(
    r"(?:tensor[-_]parallel(?:[-_]size)?|--tp(?:-size)?|\btp(?:_size)?)[= :']{1,3}[2-9]"
    r"|\bTP ?[248]\b|\b[2-9] ?(?:x|×|\*|cards|GPUs|张|卡)|\bnGpus [2-9]|-g [2-9]\b"
    r"|world_size=[2-9]|nranks [2-9]",
    FLAGS,
)
# Cards that are fully in use.
_SPINS = re.compile(
    r"(?:GPU-?Util|utili[sz]ation|util)\W{0,3}(?:is |at |of )?100 ?%|100 ?% (?:GPU[- ])?util"
    r"|(?:GPUs?|cards|显卡)[^.\n]{0,30}100 ?%",
    FLAGS,
)
_BUSY = 95  # percent (ours)
_WAITS_AT = (
    0.35  # of its limit: a card that computes draws more, one that only waits does not (ours)
)
_LEAST_LIMIT_MW = 250_000  # of a V100, where the text does not tell it
_NEVER_LINKED = re.compile(r"V100S?[- ]PCI-?E|TITAN V|FHHL", re.IGNORECASE)
# One card that is not.
_ONE_IDLE = re.compile(
    r"\b(?:one|single|1) (?:GPU|card|rank)[^.\n]{0,40}\b0 ?%|GPU ?\d\b[^.,\n]{0,20}\b0 ?%"
    r"|一(?:块|张)(?:卡|显卡)[^。\n]{0,10}0 ?%?(?:的)?利用率|某一?(?:块|张)卡利用率完全为0",
    FLAGS,
)


class _Card(NamedTuple):
    """A card in nvidia-smi: its use in percent, and whether it draws no more than waiting takes."""

    use: int
    waits: bool
    shown: list[Evidence]


def _cards(case: Case) -> list[_Card]:
    nvml = case.facts.nvml.data
    found = []
    for gpu in nvml.gpus if nvml else []:
        use, draw = value(gpu.utilization.gpu), value(gpu.power.draw_mw)
        limit = value(gpu.power.enforced_mw) or _LEAST_LIMIT_MW
        if use is None:
            continue
        shown = [
            seen.evidence
            for seen in case.seen
            if seen.subject == f"GPU {gpu.index}" and seen.value == "busy"
        ]
        found.append(_Card(use, draw is not None and draw < _WAITS_AT * limit, shown[:1]))
    return found


def _unlinked(case: Case) -> bool:
    """Say whether a pair of the cards has no NVLink: by the topology, by words, by their kind."""
    topo = case.facts.topo.data
    if topo and len(topo.links) > 1:
        return any(
            cell != SELF and not cell.startswith("NV") for cells in topo.links for cell in cells
        )
    kinds = case.cards and all(_NEVER_LINKED.search(card) for card in case.cards)
    return NAMED["no-nvlink"](case) or bool(kinds)


def _stall(case: Case) -> list[Evidence]:
    """Return what shows that a group stands still: a waiting worker, people's words."""
    if _STALLED in case.symptoms:
        return case.symptoms[_STALLED][1].evidence[:2]
    return [seen for seen in case.lines(HANGS) if not _OTHER_HANG.search(seen.text)]


def _spin(case: Case) -> list[Evidence]:
    """Return what shows two or more cards fully in use at the power of cards that wait."""
    spinning = [card for card in _cards(case) if card.use >= _BUSY and card.waits]
    if len(spinning) > 1:
        return [seen for card in spinning[:2] for seen in card.shown]
    return case.lines(_SPINS, 1)


def _is_group(case: Case) -> bool:
    return NAMED["several-gpus"](case) or bool(case.lines(_GROUP, 1))


def _has_own_all_reduce(case: Case) -> bool:
    off = case.flags.disable_custom_all_reduce or case.lines(_CUSTOM_OFF, 1)
    return bool(case.lines(_ENGINE, 1)) and not off


@rule("custom-allreduce-topology")
def custom_allreduce(case: Case, row: Row) -> Iterator[Finding]:
    """An engine with an all-reduce of its own stands still on cards without NVLink."""
    stall, spin = _stall(case), _spin(case)
    if not (stall or case.found("cuda-graph-capture")) or not _has_own_all_reduce(case):
        return
    if not _unlinked(case) or not _is_group(case):
        return
    seen = dict.fromkeys([*stall, *spin, *case.lines(re.compile("NVLink", FLAGS), 1)])
    told = " and spins" if spin else ""
    finding = row.fail(
        f"The group stands still{told}, its cards have no NVLink, and the engine's own all-reduce"
        " is on.",
        *seen,
    )
    yield likely(finding, "peer-to-peer that is broken for NCCL too has the same signs")


@rule("p2p-broken")
def peer_to_peer(case: Case, row: Row) -> Iterator[Finding]:
    """NCCL itself stands still on cards that reach each other through PCIe."""
    if {"acs", "iommu"} & decided(case).keys():
        return
    stall = _stall(case)
    through = case.lines(re.compile(r"via P2P/(?:IPC|CUMEM|direct)", FLAGS), 1)
    redirected = case.found("acs") or case.found("iommu")
    engine = case.lines(_ENGINE, 1) and not case.lines(_CUSTOM_OFF, 1)
    if not (stall or _spin(case)) or case.lines(_NO_PEERS, 1) or not _is_group(case):
        return
    if not (_unlinked(case) or redirected) or not (
        redirected or (case.lines(_NCCL, 1) and not engine)
    ):
        return
    why = "the bridges or the IOMMU redirect it" if redirected else "the cards have no NVLink"
    finding = row.fail(
        f"The group stands still in a call of NCCL, which copies from card to card: {why}.",
        *dict.fromkeys([*stall, *_spin(case), *through]),
    )
    yield likely(finding, "no test of a copy between two cards is shown")


@rule("collective-stall")
def one_rank_left(case: Case, row: Row) -> Iterator[Finding]:
    """One card idles while the others of the group wait for it."""
    cards, stall = _cards(case), _stall(case)
    idle = [card for card in cards if card.use == 0]
    busy = [card for card in cards if card.use >= _BUSY]
    if (
        len(idle) == 1
        and len(busy) > 1
        and (stall or case.lines(_ENGINE, 1) or case.lines(_SPREADS, 1))
    ):
        seen = [*idle[0].shown, *busy[0].shown, *busy[1].shown, *stall[:1]]
    elif stall and (told := case.lines(_ONE_IDLE, 1)):
        seen = [*told, *stall[:1]]
    else:
        return
    finding = row.fail(
        "One card of the group idles while the others wait at full use: its rank has left.",
        *dict.fromkeys(seen),
    )
    if stall:
        yield likely(finding, "why that rank left is not in the text")
    else:
        yield possible(finding, "the text does not say that the group stands still")


_ONE_CARD = Switch(
    "p2p-broken",
    named(
        r"\b(?:a |on )?(?:single|one|1) (?:GPU|card)\b|单卡|CUDA_VISIBLE_DEVICES=\d(?:[^,\d]|$)"
        r"|(?:tensor[-_]parallel[-_]size|--?tp(?:-size)?|\bTP)[ =]?1\b|-sm none|--split-mode none"
    ),
    "The answers are wrong on several cards and right on one.",
    WRONG,
)


@rule("custom-allreduce-topology")
def right_on_one_card(case: Case, row: Row) -> Iterator[Finding]:
    """What the engine's own all-reduce adds up is wrong, or what it was given."""
    if _has_own_all_reduce(case) and (seen := gone_with(case, _ONE_CARD)):
        why = "a split that does not fit the model is wrong on several cards too"
        yield possible(row.fail(_ONE_CARD.says, *dict.fromkeys(seen)), why)


@rule("p2p-broken")
def right_without_peers(case: Case, row: Row) -> Iterator[Finding]:
    """What comes from the other card is wrong, and no tool that copies says so."""
    if not _has_own_all_reduce(case) and (seen := gone_with(case, _ONE_CARD)):
        why = "no test of a copy between two cards is shown"
        yield possible(row.fail(_ONE_CARD.says, *dict.fromkeys(seen)), why)
