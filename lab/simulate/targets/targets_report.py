"""Runs all scenarios in parallel processes, and returns the targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import msgspec
from msgspec.structs import replace

from lab.simulate.targets.chat_targets import CHAT_SCENARIOS, chat_targets
from lab.simulate.targets.comparison import Target
from lab.simulate.targets.frontier import FRONTIER_SCENARIOS, FrontierPoint, frontier, with_known_lengths
from lab.simulate.targets.global_targets import GLOBAL_SCENARIOS, global_targets
from lab.simulate.targets.image_targets import IMAGE_SCENARIOS, image_targets
from lab.simulate.targets.prefix_targets import PREFIX_SCENARIOS, prefix_targets
from lab.simulate.targets.scenarios import Measures, Scale, Scenario
from lab.simulate.targets.session_targets import SESSION_SCENARIOS, session_targets
from lab.simulate.targets.tenant_targets import TENANT_SCENARIOS, tenant_targets

FIRST_SEED = 2026


SMALL = Scale(
    seeds=10,
    image_jobs=2500,
    chat_s=30.0,
    step_s=40.0,
    tenant_s=42.0,
    tenant_seeds=4,
    sessions=12,
    prefix_s=60.0,
    prefix_seeds=3,
)
FULL = Scale(
    seeds=20,
    image_jobs=10_000,
    chat_s=120.0,
    step_s=120.0,
    tenant_s=60.0,
    tenant_seeds=20,
    sessions=12,
    prefix_s=120.0,
    prefix_seeds=6,
)


class Report(msgspec.Struct, frozen=True):
    """The result of `penstock-lab sim`."""

    scale: Scale
    known_lengths: bool
    """Whether `max_tokens` of chats is the length of the answer; else it is equal for all."""
    targets: list[Target]
    frontier: list[FrontierPoint]
    """The measurements of every service discipline."""
    runs: dict[str, dict[str, list[Measures]]]
    """By scenario and contender: the measurements of one run per seed."""


def simulate(scale: Scale, processes: int, *, known_lengths: bool = False) -> Report:
    """Run every scenario.

    Args:
        processes: number of processes; 1 runs all scenarios in the current process.
        known_lengths: whether `max_tokens` of chats is the length of the answer.
    """
    scenarios: tuple[Scenario, ...] = (
        *IMAGE_SCENARIOS,
        *(replace(scenario, known_lengths=known_lengths) for scenario in CHAT_SCENARIOS),
        *GLOBAL_SCENARIOS,
        *(with_known_lengths(scenario) if known_lengths else scenario for scenario in FRONTIER_SCENARIOS),
        *TENANT_SCENARIOS,
        *SESSION_SCENARIOS,
        *PREFIX_SCENARIOS,
    )
    tasks = [
        (scenario, contender, seed)
        for scenario in scenarios
        for contender in scenario.contenders
        for seed in range(FIRST_SEED, FIRST_SEED + _seeds(scenario, scale))
    ]
    runs: dict[str, dict[str, list[Measures]]] = {}
    for (scenario, contender, _), measures in zip(tasks, _all(tasks, scale, processes), strict=True):
        runs.setdefault(scenario.name, {}).setdefault(contender, []).append(measures)
    targets = [
        *chat_targets(runs),
        *image_targets(runs),
        *global_targets(runs),
        *tenant_targets(runs),
        *session_targets(runs),
        *prefix_targets(runs),
    ]
    return Report(scale, known_lengths, targets, frontier(runs), runs)


def _seeds(scenario: Scenario, scale: Scale) -> int:
    if scenario in TENANT_SCENARIOS:
        return scale.tenant_seeds
    return scale.prefix_seeds if scenario in PREFIX_SCENARIOS else scale.seeds


_Task = tuple[Scenario, str, int]


def _all(tasks: Sequence[_Task], scale: Scale, processes: int) -> Iterable[Measures]:
    measure = partial(_measure, scale)
    if processes == 1:
        return [measure(task) for task in tasks]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        return list(pool.map(measure, tasks))


def _measure(scale: Scale, task: _Task) -> Measures:
    scenario, contender, seed = task
    return scenario.measure(contender, scale, seed)
