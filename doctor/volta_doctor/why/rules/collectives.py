"""Groups of cards that stand still: which way between the cards is to blame.

A worker that waits says only that it waits. What decides stands beside it: whether the cards have
NVLink, whether they spin (busy, at the power of a card that waits), and whose collective runs.
"""

import re
from collections.abc import Iterator

from volta_doctor.catalog import Row
from volta_doctor.findings import Evidence, Finding
from volta_doctor.why.case import Case
from volta_doctor.why.conditions import NAMED
from volta_doctor.why.rules import likely, rule
from volta_doctor.why.words import lines

_FLAGS = re.IGNORECASE | re.ASCII  # a word also ends where Chinese begins
_STALLED = "no-answer-from-a-worker"  # the symptom
_HANGS = re.compile(
    r"\b(?:hangs?|hanging|hung|stuck|deadlock(?:s|ed)?|freez(?:es?|ing)|frozen|spins? forever"
    r"|never (?:returns|ends|finish(?:es)?|complet(?:es|ed)|converges)"
    r"|(?:prints|prints out|outputs?) nothing (?:more|else)|no (?:further )?output"
    r"|does(?: not|n't) (?:return|finish|start))\b"
    r"|卡住|卡死|挂起|一直没有反应|没有响应",
    _FLAGS,
)
# Not a hang of a group: what says so of a tool, a task or a disk.
_OTHER_HANG = re.compile(r"nvidia-smi (?:itself )?hang|hung_task|blocked for more than", _FLAGS)
_ENGINE = re.compile(r"\b(?:vllm|sglang|sgl[_-]|1cat|aphrodite)", _FLAGS)
_CUSTOM_OFF = re.compile(
    r"--disable-custom-all-reduce|disable_custom_all_reduce['\"]?[=:] ?True"
    r"|Custom allreduce is disabled",
    _FLAGS,
)
_NO_PEERS = re.compile(r"lacks GPU P2P capability|NCCL_P2P_DISABLE(?:=| set by environment to )1")
_NCCL = re.compile(
    r"all_reduce_perf|nccl-tests|NCCL INFO|init_process_group|torch\.distributed|torchrun"
    r"|p2pBandwidthLatencyTest|simpleP2P|tensor[-_ ]parallel|--tp\b",
    _FLAGS,
)
_GROUP = re.compile(
    r"(?:tensor[-_]parallel(?:[-_]size)?|--tp(?:-size)?|\btp(?:_size)?)[= :']{1,3}[2-9]"
    r"|\bTP ?[248]\b|\b[2-9] ?(?:x|×|\*|cards|GPUs|张|卡)|\bnGpus [2-9]|-g [2-9]\b"
    r"|world_size=[2-9]|nranks [2-9]",
    _FLAGS,
)
# A row of nvidia-smi's table: watts, their limit, use.
_ROW = re.compile(r"(\d+)W / +(\d+)W \|[^|]*\| +(\d+)%")
_SPINS = re.compile(
    r"(?:GPU-?Util|utili[sz]ation|util)\W{0,3}(?:is |at |of )?100 ?%|100 ?% (?:GPU[- ])?util"
    r"|(?:GPUs?|cards|显卡)[^.\n]{0,30}100 ?%",
    _FLAGS,
)
_WAITS_AT = 0.35  # of its limit: a card that computes draws more, one that only waits does not
_ONE_IDLE = re.compile(
    r"\b(?:one|single|1) (?:GPU|card|rank)[^.\n]{0,40}\b0 ?%|GPU ?\d[^.\n]{0,20}\b0 ?% ?util"
    r"|一(?:块|张)(?:卡|显卡)[^。\n]{0,10}0 ?%?(?:的)?利用率|某一?(?:块|张)卡利用率完全为0",
    _FLAGS,
)


def _rows(case: Case) -> list[tuple[Evidence, int, int, int]]:
    """Return from nvidia-smi's table, per card: its line, watts, limit, use in percent."""
    return [
        (text.evidence(line), *(int(figure) for figure in row.groups()))  # type: ignore[misc]
        for text in case.texts
        for line in text.lines
        if (row := _ROW.search(line.text))
    ]


def _stall(case: Case) -> list[Evidence]:
    """Return what shows that a group stands still: a waiting worker, people's words."""
    if _STALLED in case.symptoms:
        return case.symptoms[_STALLED][1].evidence[:2]
    return [seen for seen in lines(case, _HANGS) if not _OTHER_HANG.search(seen.text)]


def _spin(case: Case) -> list[Evidence]:
    """Return what shows two or more cards fully in use at the power of cards that wait."""
    rows = [
        seen for seen, watts, limit, use in _rows(case) if use >= 95 and watts < _WAITS_AT * limit
    ]
    return rows[:2] if len(rows) > 1 else lines(case, _SPINS, 1)


def _is_group(case: Case) -> bool:
    return NAMED["several-gpus"](case) or bool(lines(case, _GROUP, 1))


@rule("custom-allreduce-topology")
def custom_allreduce(case: Case, row: Row) -> Iterator[Finding]:
    """An engine with an all-reduce of its own stands still on cards without NVLink."""
    stall, spin = _stall(case), _spin(case)
    ways = NAMED["no-nvlink"](case)
    if not (stall or case.found("cuda-graph-capture")) or not (ways and lines(case, _ENGINE, 1)):
        return
    off = case.flags.disable_custom_all_reduce or lines(case, _CUSTOM_OFF, 1)
    if off or not _is_group(case):
        return
    seen = dict.fromkeys([*stall, *spin, *lines(case, re.compile("NVLink", _FLAGS), 1)])
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
    stall = _stall(case)
    through = lines(case, re.compile(r"via P2P/(?:IPC|CUMEM|direct)", _FLAGS), 1)
    redirected = case.found("acs") or case.found("iommu")
    engine = lines(case, _ENGINE, 1) and not lines(case, _CUSTOM_OFF, 1)
    if not (stall or len(_spin(case)) > 1) or lines(case, _NO_PEERS, 1) or not _is_group(case):
        return
    if not (NAMED["no-nvlink"](case) or redirected) or not (
        redirected or (lines(case, _NCCL, 1) and not engine)
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
    rows = _rows(case)
    idle = [seen for seen, _, _, use in rows if use == 0]
    busy = [seen for seen, _, _, use in rows if use >= 95]
    stall = _stall(case)
    if stall and len(idle) == 1 and len(busy) > 1:
        seen = [*idle, *busy[:2], *stall[:1]]
    elif stall and (told := lines(case, _ONE_IDLE, 1)):
        seen = [*told, *stall[:1]]
    else:
        return
    finding = row.fail(
        "One card of the group idles while the others wait at full use: its rank has left.",
        *dict.fromkeys(seen),
    )
    yield likely(finding, "why that rank left is not in the text")
