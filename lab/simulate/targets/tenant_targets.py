"""Targets of fairness among tenants and priorities, against the queues of other gateways."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median

import msgspec

from lab.simulate.baselines.tenant_queues import by_arrival, by_priority, with_quotas
from lab.simulate.contenders import PENSTOCK
from lab.simulate.penstock_agent import PenstockAgent
from lab.simulate.region import Agent, Region
from lab.simulate.targets.comparison import Target, at_most, mean
from lab.simulate.targets.scenarios import Measures, Runs, Scale, values_of
from lab.simulate.tenant_workloads import Agents, TenantRun, TenantTraffic, run_tenants
from lab.traces.trace import TraceRequest
from penstock.policy.kinds.models import Queueing

WINDOW_S = 30.0
"""Time (s) in which tenants are compared."""

FIFO = "first in, first out"
STRICT = "strict priority"
QUOTAS = "quotas of each replica"


def _penstock(region: Region[TraceRequest]) -> list[Agent[TraceRequest]]:
    return [PenstockAgent(region, number, Queueing()) for number in range(region.agents)]


CONTENDERS: Mapping[str, Agents] = {
    PENSTOCK: _penstock,
    FIFO: by_arrival,
    STRICT: by_priority,
    QUOTAS: with_quotas,
}


class TenantScenario(msgspec.Struct, frozen=True, kw_only=True):
    """Several tenants on one region with three agents, whose agents do not know the lengths of answers."""

    name: str
    tenants: tuple[TenantTraffic, ...]
    contenders: tuple[str, ...]

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """Run one contender; return gaps of GPU time, delays and starvation."""
        run = run_tenants(self.tenants, CONTENDERS[contender], seed, scale.tenant_s)
        first, last = self.tenants[0], self.tenants[-1]
        delays_s = run.delays_s(last.name)
        holds_s = [
            each.request.at_s + each.end_s - each.sent_at
            for each in run.served[first.name]
            if each.end_s is not None and each.sent_at is not None
        ]
        return {
            "gap": self._largest_gap(run, scale.tenant_s),
            "gpu_s": sum(run.work_s(tenant.name, 0.0, scale.tenant_s) for tenant in self.tenants),
            "worst_delay_s": max(delays_s, default=0.0),
            "mean_delay_s": fmean(delays_s or [0.0]),
            "service_s": median(holds_s or [1.0]),
            "starvation_s": run.longest_starvation_s(last.name),
        }

    def _largest_gap(self, run: TenantRun, arrivals_s: float) -> float:
        """Return the largest difference of the tenants' GPU time by weight, as a part of the mean, in any WINDOW_S."""
        gaps = [0.0]
        begins_s = max(tenant.begins_s for tenant in self.tenants) + 1.0
        for second in range(int(arrivals_s - WINDOW_S - begins_s) + 1):
            since_s = begins_s + second
            works = [run.work_s(each.name, since_s, since_s + WINDOW_S) / each.weight for each in self.tenants]
            gaps.append((max(works) - min(works)) / fmean(works))
        return max(gaps)


def _traffic(name: str, rate_per_s: float, prompt_tokens: int, output_tokens: int, **more: object) -> TenantTraffic:
    fields = {"name": name, "rate_per_s": rate_per_s, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    return TenantTraffic(**{**fields, **more})  # type: ignore[arg-type]


EQUAL = TenantScenario(
    name="equal tenants",
    contenders=(PENSTOCK, FIFO, QUOTAS),
    tenants=(
        _traffic("many connections", 24.0, 800, 200, agents=(0,)),
        _traffic("short answers", 48.0, 2000, 40, agents=(1, 2), begins_s=5.0),
    ),
)
WEIGHTS = TenantScenario(
    name="weights 2:1",
    contenders=(PENSTOCK, FIFO, QUOTAS),
    tenants=(
        _traffic("two", 26.0, 800, 120, weight=2.0, agents=(0,)),
        _traffic("one", 14.0, 800, 120, agents=(1, 2)),
    ),
)
LONG = TenantScenario(
    name="long prompts beside short ones",
    contenders=(PENSTOCK, FIFO, QUOTAS),
    tenants=(
        _traffic("long", 3.0, 100_000, 200, agents=(0, 1)),
        _traffic("quiet", 2.0, 200, 60, agents=(2,), begins_s=10.0),
    ),
)
PRIORITIES = TenantScenario(
    name="a low priority under overload",
    contenders=(PENSTOCK, FIFO, STRICT),
    tenants=(
        _traffic("high", 25.0, 800, 200, priority=1),
        _traffic("low", 2.0, 800, 100),
    ),
)

TENANT_SCENARIOS = (EQUAL, WEIGHTS, LONG, PRIORITIES)


def tenant_targets(runs: Mapping[str, Runs]) -> list[Target]:
    """Return the targets of tenants from the runs of each scenario."""
    found = []
    for scenario, limit in ((EQUAL, 0.05), (WEIGHTS, 0.1)):
        own = mean(values_of(runs[scenario.name], PENSTOCK, "gap"))
        name = f"7 {scenario.name}: largest gap of GPU time by weight in 30 s / mean"
        found.append(at_most(limit, name, own, _others(runs[scenario.name], "gap")))
    long = runs[LONG.name]
    delays = [worst / service for worst, service in _pairs(long, "worst_delay_s", "service_s")]
    name = f"7 {LONG.name}: worst delay of a short one / service time of a long one"
    found.append(at_most(1.0, name, mean(delays), _others(long, "worst_delay_s", " s")))
    starved = mean(values_of(runs[PRIORITIES.name], PENSTOCK, "starvation_s"))
    name = f"7 {PRIORITIES.name}: longest time without a start (s)"
    found.append(at_most(12.0, name, starved, _others(runs[PRIORITIES.name], "starvation_s", " s")))
    return found


def _pairs(runs: Runs, metric: str, other: str) -> list[tuple[float, float]]:
    return list(zip(values_of(runs, PENSTOCK, metric), values_of(runs, PENSTOCK, other), strict=True))


def _others(runs: Runs, metric: str, unit: str = "") -> str:
    return ", ".join(f"{name} {fmean(values_of(runs, name, metric)):.2f}{unit}" for name in runs if name != PENSTOCK)
