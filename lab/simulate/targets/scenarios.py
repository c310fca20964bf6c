"""Scenarios of one region: engines, agents, workload, and the measurements of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from statistics import fmean, pstdev
from typing import Protocol

import msgspec

from lab.quantile import quantile
from lab.simulate.contenders import PENSTOCK, AgentSettings, run
from lab.simulate.fleets import EngineKind, ImageFleet, ImageJob, Request
from lab.simulate.region import Region
from lab.simulate.targets.comparison import ratio
from penstock.policy.kinds.models import Queueing, QueueOrder

WARM_UP = 0.1
"""Share (0-1) of the requests at the start of a run that are not counted, since engines start idle and agents without
measurements."""

SIDES = (512, 768, 1024)
STEPS = (8, 12, 20, 30)
"""Sides (pixels) and steps of image jobs, as in the demo, with equal probabilities."""

ESTIMATE_SD = 0.1
"""Standard deviation of the logarithm of an image job's true work around its pixels times steps."""

LOAD = 0.85

SAME = (EngineKind("", 20, 1),)
MIXED = (EngineKind("", 7, 1, 0.75), EngineKind("", 6, 1, 1.0), EngineKind("", 7, 1, 1.5))

_SIZES = [(width * height, steps) for width in SIDES for height in SIDES for steps in STEPS]
MEAN_WORK_S = fmean([pixels * steps for pixels, steps in _SIZES]) / 1e6 * ImageFleet.cost.output_unit_s


class Scale(msgspec.Struct, frozen=True):
    """The amount of simulated work."""

    seeds: int
    image_jobs: int
    """Number of image jobs per run."""
    chat_s: float
    """Duration (s) of chat arrivals per run."""
    step_s: float
    """Time (s) between steps of a region's demand."""
    tenant_s: float = 1.0
    """Duration (s) of arrivals in scenarios with several tenants."""
    tenant_seeds: int = 1
    """Number of seeds of these scenarios, whose runs are long."""
    sessions: int = 1
    """Agent sessions of each origin."""
    prefix_s: float = 2.0
    """Duration (s) of arrivals in scenarios with prefixes across regions."""
    prefix_seeds: int = 1
    """Number of seeds of these scenarios."""


Measures = dict[str, float]
"""The measurements of one run by metric."""


Runs = Mapping[str, Sequence[Measures]]
"""The runs of one scenario by contender; one run per seed."""


class Scenario(Protocol):
    """A workload and its contenders."""

    @property
    def name(self) -> str:
        """Name of the scenario in the report."""

    @property
    def contenders(self) -> tuple[str, ...]:
        """Names of the contenders."""

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """Run one contender, and return the measurements."""


class RegionScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A workload on one region."""

    name: str
    kinds: tuple[EngineKind, ...]
    agents: int
    contenders: tuple[str, ...]


BY_ARRIVAL = Queueing(QueueOrder.ARRIVAL)


class ImageScenario(RegionScenario, frozen=True, kw_only=True):
    """Image jobs that arrive as a Poisson process on one region."""

    load: float = LOAD
    view_age_s: float | None = None
    """Age (s) of the shared view; None for the product's exchange of load."""
    queueing: Queueing = BY_ARRIVAL
    """Service discipline of Penstock's queues."""

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """As `Scenario.measure`."""
        speed = sum(kind.count * kind.speed for kind in self.kinds)
        region = run(
            contender,
            partial(ImageFleet, kinds=self.kinds),
            image_jobs(scale.image_jobs, self.load * speed / MEAN_WORK_S, seed),
            AgentSettings(self.agents, self.view_age_s, self.queueing),
            seed,
        )
        return measures(region)


def image_jobs(count: int, rate_per_s: float, seed: int) -> list[ImageJob]:
    """Return image jobs that arrive as a Poisson process."""
    rng = Random(seed)
    jobs, at_s = [], 0.0
    for _ in range(count):
        at_s += rng.expovariate(rate_per_s)
        pixels, steps = rng.choice(_SIZES)
        work_s = pixels * steps / 1e6 * ImageFleet.cost.output_unit_s
        jobs.append(ImageJob(at_s, pixels, steps, work_s * rng.lognormvariate(0.0, ESTIMATE_SD)))
    return jobs


def measures(region: Region[Request]) -> Measures:
    """Return latencies (s) after the warm-up, and the busy time (s) of the engines and its variation."""
    counted = region.served[int(WARM_UP * len(region.served)) :]
    end_s = [served.end_s for served in counted if served.end_s is not None]
    first_s = [served.first_s for served in counted if served.first_s is not None]
    found = {"gpu_s": sum(region.use()) * region.clock.now, "use_cv": _use_variation(region)}
    return found | summary("e2e", end_s) | summary("ttft", first_s)


def summary(name: str, values: Sequence[float]) -> Measures:
    """Return the mean and the quantiles of a latency (s)."""
    quantiles = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {f"{name}_{label}_s": quantile(values, part) or 0.0 for label, part in quantiles.items()}
    return {f"{name}_mean_s": fmean(values)} | found


def _use_variation(region: Region[Request]) -> float:
    """Return the coefficient of variation of the use of equal engines: the mean over kinds, weighted by use.

    The distribution of few requests over the engines of a kind is random, so kinds with little use count less.
    """
    use: dict[EngineKind, list[float]] = {}
    for kind, busy in zip(region.fleet.kinds, region.use(), strict=True):
        use.setdefault(kind, []).append(busy)
    return sum([pstdev(busy) * len(busy) for busy in use.values()]) / sum([sum(busy) for busy in use.values()])


def values_of(runs: Runs, contender: str, metric: str) -> list[float]:
    """Return a metric of every run of a contender."""
    return [run[metric] for run in runs[contender]]


def versus(runs: Runs, metric: str, other: str) -> tuple[float, tuple[float, float]]:
    """Return the ratio of Penstock to another contender, and its bootstrap interval."""
    return ratio(values_of(runs, PENSTOCK, metric), values_of(runs, other, metric))
