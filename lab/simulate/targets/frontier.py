"""The service disciplines that policy can give a queue, measured on the same requests: what each gains and costs.

Where engines are full, no order of service is best for the median and for the tail: short requests that overtake long
ones shorten the median and the mean, and those that are overtaken make the tail (Schrage and Miller, "The queue M/G/1
with the shortest remaining processing time discipline", 1966, for the mean; Nair et al., "The fundamentals of heavy
tails", 2022, chapter 5, for the tail). A discipline is on the frontier if no other is better in one and as good in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import msgspec

from lab.simulate.contenders import BOUNDS, PENSTOCK
from lab.simulate.live import LIVE
from lab.simulate.targets.chat_targets import ChatScenario
from lab.simulate.targets.image_targets import ONE_SLOT
from lab.simulate.targets.scenarios import ImageScenario, Measures, Runs, Scale, values_of
from penstock.policy.policy import Queueing, QueueOrder

DISCIPLINES = {
    "penstock, by arrival": Queueing(QueueOrder.ARRIVAL),
    "penstock, shortest, overtaken 2 s": Queueing(max_overtaken_s=2.0),
    "penstock, shortest, overtaken 10 s": Queueing(),
    "penstock, shortest, overtaken 60 s": Queueing(max_overtaken_s=60.0),
}
"""By name. By deadline is by arrival here: all requests may wait equally long."""

METRICS = ("e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "e2e_p999_s")

SAME_WITHIN = 0.01
"""Part by which means over seeds may differ and count as equal."""


class DisciplineScenario(msgspec.Struct, frozen=True):
    """One workload under each discipline."""

    of: ImageScenario | ChatScenario
    bounds: tuple[str, ...] = ()
    """Clairvoyant orders to compare with, which run in `of`."""

    @property
    def name(self) -> str:
        """As `Scenario.name`."""
        return f"disciplines: {self.of.name}"

    @property
    def contenders(self) -> tuple[str, ...]:
        """As `Scenario.contenders`."""
        return tuple(DISCIPLINES)

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """As `Scenario.measure`."""
        return msgspec.structs.replace(self.of, queueing=DISCIPLINES[contender]).measure(PENSTOCK, scale, seed)


_FULL = ChatScenario(name="chats, 22/s, 1 agent", kinds=LIVE, agents=1, contenders=(), rate_per_s=22.0, reuse=False)
"""More than the engines serve."""

FRONTIER_SCENARIOS = (
    DisciplineScenario(ONE_SLOT, BOUNDS),
    DisciplineScenario(_FULL),
)


class FrontierPoint(msgspec.Struct, frozen=True):
    """One discipline on one workload."""

    workload: str
    discipline: str
    measured: dict[str, float]
    """Mean over seeds (s) by metric."""
    behind: tuple[str, ...]
    """Other disciplines of Penstock, and clairvoyant orders, that are better in some metric and as good in all."""


def frontier(runs: Mapping[str, Runs]) -> list[FrontierPoint]:
    """The points, from the runs by scenario."""
    found = []
    for scenario in FRONTIER_SCENARIOS:
        all_runs = [(name, runs[scenario.name]) for name in scenario.contenders]
        all_runs += [(name, runs[scenario.of.name]) for name in scenario.bounds]
        means = {name: {metric: fmean(values_of(of, name, metric)) for metric in METRICS} for name, of in all_runs}
        for contender, measured in means.items():
            behind = tuple(name for name, rival in means.items() if _is_better(rival, measured))
            rounded = {metric: round(value, 4) for metric, value in measured.items()}
            found.append(FrontierPoint(scenario.of.name, contender, rounded, behind))
    return found


def _is_better(rival: Mapping[str, float], measured: Mapping[str, float]) -> bool:
    """Whether a discipline is better in some metric and as good in all."""
    as_good = all(rival[metric] <= measured[metric] * (1.0 + SAME_WITHIN) for metric in METRICS)
    return as_good and any(rival[metric] < measured[metric] * (1.0 - SAME_WITHIN) for metric in METRICS)
