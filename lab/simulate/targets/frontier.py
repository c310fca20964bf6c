"""Measures the service disciplines that a policy can select for queues, on the same requests.

On full engines, no order of service is optimal for both the median and the tail: requests that overtake longer requests
reduce the median and the mean, and overtaken requests increase the tail (Schrage and Miller, "The queue M/G/1
with the shortest remaining processing time discipline", 1966, for the mean; Nair et al., "The fundamentals of heavy
tails", 2022, chapter 5, for the tail). A discipline is on the frontier if no other discipline is better in a
metric and as good in all metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

import msgspec

from lab.simulate.contenders import BOUNDS, PENSTOCK
from lab.simulate.fleets import CHAT_ENGINES
from lab.simulate.targets.chat_targets import ChatScenario
from lab.simulate.targets.image_targets import ONE_SLOT
from lab.simulate.targets.scenarios import ImageScenario, Measures, Runs, Scale, values_of
from penstock.policy.kinds.models import Queueing, QueueOrder

DISCIPLINES = {
    "penstock, by arrival": Queueing(QueueOrder.ARRIVAL),
    "penstock, shortest, overtaken 2 s": Queueing(max_overtaken_s=2.0),
    "penstock, shortest, overtaken 10 s": Queueing(),
    "penstock, shortest, overtaken 60 s": Queueing(max_overtaken_s=60.0),
}
"""Service disciplines by name. The order by deadline equals the order by arrival, since all requests have the same
maximum wait."""

METRICS = ("e2e_mean_s", "e2e_p50_s", "e2e_p99_s", "e2e_p999_s")

SAME_WITHIN = 0.01
"""Maximum relative difference of means over seeds that count as equal."""


class DisciplineScenario(msgspec.Struct, frozen=True):
    """One workload with each service discipline."""

    of: ImageScenario | ChatScenario
    bounds: tuple[str, ...] = ()
    """Clairvoyant orders for comparison, whose runs are those of the scenario `of`."""

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


def with_known_lengths(scenario: DisciplineScenario) -> DisciplineScenario:
    """Return the scenario with `max_tokens` of chats equal to the length of the answer."""
    if not isinstance(scenario.of, ChatScenario):
        return scenario
    return msgspec.structs.replace(scenario, of=msgspec.structs.replace(scenario.of, known_lengths=True))


_FULL = ChatScenario(
    name="chats, 22/s, 1 agent", kinds=CHAT_ENGINES, agents=1, contenders=(), rate_per_s=22.0, reuse=False
)
"""A workload that exceeds the capacity of the engines."""

FRONTIER_SCENARIOS = (
    DisciplineScenario(ONE_SLOT, BOUNDS),
    DisciplineScenario(_FULL),
)


class FrontierPoint(msgspec.Struct, frozen=True):
    """The measurements of one discipline on one workload."""

    workload: str
    discipline: str
    measured: dict[str, float]
    """Mean (s) over seeds by metric."""
    behind: tuple[str, ...]
    """Disciplines and clairvoyant orders that are better in a metric and as good in all metrics."""


def frontier(runs: Mapping[str, Runs]) -> list[FrontierPoint]:
    """Return the points of all disciplines and bounds from the runs of each scenario."""
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
    """Whether `rival` is better than `measured` in a metric and as good in all metrics."""
    as_good = all(rival[metric] <= measured[metric] * (1.0 + SAME_WITHIN) for metric in METRICS)
    return as_good and any(rival[metric] < measured[metric] * (1.0 - SAME_WITHIN) for metric in METRICS)
