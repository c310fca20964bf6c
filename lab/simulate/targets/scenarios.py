"""The scenarios of one region: engines, agents, workload, and what is measured of one run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from statistics import fmean, pstdev

import msgspec

from lab.quantile import quantile
from lab.simulate.contenders import run
from lab.simulate.fleets import EngineKind, ImageFleet, ImageJob, Request
from lab.simulate.region import Region
from penstock.policy.policy import Queueing, QueueOrder

WARM_UP = 0.1
"""The part (0-1) of the requests, the first ones, that are not counted: engines start empty, agents without
measurements."""

SIDES = (512, 768, 1024)
STEPS = (8, 12, 20, 30)
"""Sides (pixels) and steps of image jobs, as in the demo; all are as likely."""

ESTIMATE_SD = 0.1
"""Standard deviation of the logarithm of an image job's true work around its pixels times steps."""

LOAD = 0.85

SAME = (EngineKind("", 20, 1),)
MIXED = (EngineKind("", 7, 1, 0.75), EngineKind("", 6, 1, 1.0), EngineKind("", 7, 1, 1.5))

_SIZES = [(width * height, steps) for width in SIDES for height in SIDES for steps in STEPS]
MEAN_WORK_S = fmean([pixels * steps for pixels, steps in _SIZES]) / 1e6 * ImageFleet.cost.output_unit_s


class Scenario(msgspec.Struct, frozen=True):
    """One region with one workload."""

    name: str
    kinds: tuple[EngineKind, ...]
    agents: int
    contenders: tuple[str, ...]
    load: float = LOAD
    view_age_s: float | None = None
    """Age of what agents see of each other; None for the exchange of the product."""
    queueing: Queueing = Queueing()
    """Service discipline of Penstock's queues, as the model's policy has it."""


BY_ARRIVAL = Queueing(QueueOrder.ARRIVAL)

Measures = dict[str, float]
"""What is measured of one run, by metric."""


def image_jobs(count: int, rate_per_s: float, seed: int) -> list[ImageJob]:
    """Image jobs as a Poisson process."""
    rng = Random(seed)
    jobs, at_s = [], 0.0
    for _ in range(count):
        at_s += rng.expovariate(rate_per_s)
        pixels, steps = rng.choice(_SIZES)
        work_s = pixels * steps / 1e6 * ImageFleet.cost.output_unit_s
        jobs.append(ImageJob(at_s, pixels, steps, work_s * rng.lognormvariate(0.0, ESTIMATE_SD)))
    return jobs


def measure_images(scenario: Scenario, contender: str, jobs: int, seed: int) -> Measures:
    """Run one contender on a scenario of image jobs."""
    speed = sum(kind.count * kind.speed for kind in scenario.kinds)
    requests = image_jobs(jobs, scenario.load * speed / MEAN_WORK_S, seed)
    region = run(
        contender,
        partial(ImageFleet, kinds=scenario.kinds),
        requests,
        agents=scenario.agents,
        seed=seed,
        view_age_s=scenario.view_age_s,
        queueing=scenario.queueing,
    )
    return measures(region)


def measures(region: Region[Request]) -> Measures:
    """Latency (s), busy time of the engines (s) and its variation, after the warm-up."""
    counted = region.served[int(WARM_UP * len(region.served)) :]
    end_s = [served.end_s for served in counted if served.end_s is not None]
    first_s = [served.first_s for served in counted if served.first_s is not None]
    use = region.use()
    found = {"gpu_s": sum(use) * region.clock.now, "use_cv": pstdev(use) / fmean(use)}
    return found | summary("e2e", end_s) | summary("ttft", first_s)


def summary(name: str, values: Sequence[float]) -> Measures:
    """Mean and quantiles of one latency (s)."""
    quantiles = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
    found = {f"{name}_{label}_s": quantile(values, part) or 0.0 for label, part in quantiles.items()}
    return {f"{name}_mean_s": fmean(values)} | found
