"""Targets of image jobs: engines with one slot, many agents, mixed hardware, old views, and even use of engines."""

from __future__ import annotations

from collections.abc import Mapping

from lab.simulate.contenders import (
    BASELINES,
    BOUNDS,
    GLOBAL_LEAST_REQUEST,
    LOCAL_LEAST_REQUEST,
    PENSTOCK,
    SHARED_TWO_CHOICES,
    TWO_CHOICES,
)
from lab.simulate.targets.comparison import Target, at_most, mean, ratio
from lab.simulate.targets.scenarios import MEAN_WORK_S, MIXED, SAME, ImageScenario, Runs, values_of, versus

AGENTS = 10

_COUNTING = tuple(name for name in BASELINES if name not in ("LMetric", "llm-d sticky", "llm-d weighted"))
"""The compared baselines, without baselines that use prompt prefixes, which image jobs do not have."""

ONE_SLOT = ImageScenario(name="image jobs", kinds=SAME, agents=AGENTS, contenders=(PENSTOCK, *_COUNTING, *BOUNDS))
MIXED_SPEEDS = ImageScenario(
    name="image jobs, mixed hardware", kinds=MIXED, agents=AGENTS, contenders=(PENSTOCK, *_COUNTING, *BOUNDS)
)
OLD_VIEW = ImageScenario(
    name="image jobs, view two service times old",
    kinds=SAME,
    agents=AGENTS,
    contenders=(PENSTOCK, LOCAL_LEAST_REQUEST, GLOBAL_LEAST_REQUEST, TWO_CHOICES, SHARED_TWO_CHOICES),
    view_age_s=2 * MEAN_WORK_S,
)

IMAGE_SCENARIOS = (ONE_SLOT, MIXED_SPEEDS, OLD_VIEW)


def image_targets(runs: Mapping[str, Runs]) -> list[Target]:
    """Return the targets of image jobs from the runs of each scenario."""
    same, mixed, old = (runs[scenario.name] for scenario in (ONE_SLOT, MIXED_SPEEDS, OLD_VIEW))
    bound = best_bound(same, "e2e_p99_s")
    mixed_bound = best_bound(mixed, "e2e_p99_s")
    return [
        at_most(
            0.42, "3 image jobs: p99 / least request with own counts", versus(same, "e2e_p99_s", LOCAL_LEAST_REQUEST)
        ),
        at_most(
            1.05, "3 image jobs: p99 / clairvoyant bound", versus(same, "e2e_p99_s", bound), f"the bound is {bound}"
        ),
        at_most(
            0.68,
            "3 image jobs: p99.9 / least request with shared counts",
            versus(same, "e2e_p999_s", GLOBAL_LEAST_REQUEST),
            _bound_note(0.68, same, "e2e_p999_s", GLOBAL_LEAST_REQUEST),
        ),
        at_most(
            0.65,
            "4 mixed hardware: p99 / least request with shared counts",
            versus(mixed, "e2e_p99_s", GLOBAL_LEAST_REQUEST),
            _bound_note(0.65, mixed, "e2e_p99_s", GLOBAL_LEAST_REQUEST),
        ),
        at_most(
            1.05,
            "4 mixed hardware: p99 / clairvoyant bound",
            versus(mixed, "e2e_p99_s", mixed_bound),
            f"the bound is {mixed_bound}",
        ),
        at_most(
            1.1, "4 view two service times old: p99 / two choices on it", versus(old, "e2e_p99_s", SHARED_TWO_CHOICES)
        ),
        at_most(0.15, "6 variation of use across like engines: image jobs", mean(values_of(same, PENSTOCK, "use_cv"))),
    ]


def best_bound(runs: Runs, metric: str) -> str:
    """Return the clairvoyant order with the lowest mean of a metric."""
    return min(BOUNDS, key=lambda name: sum(values_of(runs, name, metric)))


def _bound_note(limit: float, runs: Runs, metric: str, other: str) -> str:
    bound = best_bound(runs, metric)
    least = ratio(values_of(runs, bound, metric), values_of(runs, other, metric))[0]
    why = f"the ratio of the bound ({bound}) is {least:.2f}"
    return f"out of reach: {why}" if least > limit else why
