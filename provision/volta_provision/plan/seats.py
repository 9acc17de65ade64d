"""Which GPUs a server gets, where one command must run on every host."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

from volta_doctor.catalog.compatibility import Card
from volta_doctor.preflight.cards import Gpu
from volta_doctor.preflight.subject import Cards
from volta_provision.plan.hosts import Host

_ALIKE = 2**30  # bytes of free memory that are no reason to give up an NVLink
_SEARCHED = 16  # GPUs of which all choices are looked at: 12,870 at most


@dataclass(frozen=True)
class Seats:
    """So many GPUs, each the least that any host gives: what runs on these runs on all.

    cards: their memory, the one with the most free first. card: the slowest one's data sheet.
    linked: whether NVLink joins all of them, on every host. indices: which GPUs, by the host's
    name. whole: whether every host has these and no more.
    """

    cards: Cards
    card: Card
    linked: bool
    indices: dict[str, tuple[int, ...]]
    whole: bool

    @property
    def first_ones(self) -> bool:
        """Whether an engine takes these where it is not told which."""
        return {*self.indices.values()} == {tuple(range(len(self.cards.total)))}

    @property
    def same(self) -> tuple[int, ...] | None:
        """Their indices, where these are the same on every host."""
        found = {*self.indices.values()}
        return found.pop() if len(found) == 1 else None


def seats(hosts: Sequence[Host], count: int) -> Seats | None:
    """Choose `count` GPUs of each host; None where a host has fewer."""
    if any(len(host.gpus) < count for host in hosts):
        return None
    chosen = {host.name: best(host, count) for host in hosts}
    by_free = [sorted(gpus, key=lambda gpu: -gpu.free) for gpus in chosen.values()]
    least = [min(column, key=lambda gpu: gpu.free) for column in zip(*by_free, strict=True)]
    slowest = min(
        (gpu for gpus in chosen.values() for gpu in gpus),
        key=lambda gpu: (gpu.card.bandwidth_gbs, gpu.card.tensor_tflops),
    )
    told = dict.fromkeys(host.told_by for host in hosts)
    return Seats(
        cards=Cards(
            model=slowest.model,
            total=tuple(gpu.total for gpu in least),
            used=tuple(gpu.used for gpu in least),
            told_by=", ".join(told),
        ),
        card=slowest.card,
        linked=all(host.is_linked(chosen[host.name]) for host in hosts),
        indices={name: tuple(sorted(g.index for g in gpus)) for name, gpus in chosen.items()},
        whole=all(host.count == count for host in hosts),
    )


@lru_cache  # every engine is held against every number of GPUs
def best(host: Host, count: int) -> tuple[Gpu, ...]:
    """Choose GPUs of one host: with the most free memory, then joined by NVLink, then the first."""
    emptiest_first = sorted(host.gpus, key=lambda gpu: (-gpu.free, gpu.index))[:_SEARCHED]

    def worth(gpus: tuple[Gpu, ...]) -> tuple[int, bool, list[int]]:
        least = min(gpu.free for gpu in gpus)
        return -round(least / _ALIKE), not host.is_linked(gpus), sorted(g.index for g in gpus)

    return min(combinations(emptiest_first, count), key=worth)
