"""Targets of language models: limits relative to the best baseline, and of several agents relative to one agent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from random import Random

from lab.simulate.contenders import BASELINES, PENSTOCK, TWO_CHOICES, AgentSettings, run
from lab.simulate.fleets import CHAT_COST, CHAT_ENGINES, CHAT_MODEL, ChatFleet
from lab.simulate.targets.comparison import Target, at_most, mean, ratio
from lab.simulate.targets.scenarios import (
    Measures,
    RegionScenario,
    Runs,
    Scale,
    Scenario,
    measures,
    summary,
    values_of,
    versus,
)
from lab.traces.conversations import generate_conversations
from lab.traces.generate import Arrivals, generate
from lab.traces.trace import TraceRequest
from penstock.policy.kinds.models import Queueing

WORSE = 1.03
"""Maximum ratio of a metric to the best baseline."""

TAIL = 0.6
"""Maximum ratio of the end-to-end p99 to the best baseline, on mixed engines."""

LIKE_ONE = 1.05

_COMPARED = tuple(name for name in BASELINES if name not in ("round robin", "random", TWO_CHOICES))
"""The compared baselines, without three baselines that are never the best."""

METRICS = (
    *(f"{latency}_{part}_s" for latency in ("ttft", "tpot", "e2e") for part in ("mean", "p50", "p99", "p999")),
    "gpu_s",
)


class ChatScenario(RegionScenario, frozen=True, kw_only=True):
    """Chat requests at a constant mean rate on one region."""

    rate_per_s: float
    reuse: bool
    """Whether requests are turns of conversations over shared documents; else chats like Azure's conversation trace."""
    queueing: Queueing = Queueing()
    """Service discipline of Penstock's queues."""
    known_lengths: bool = False
    """Whether `max_tokens` of a request is the length of its answer, which only Penstock reads; else equal for all."""

    def measure(self, contender: str, scale: Scale, seed: int) -> Measures:
        """As `Scenario.measure`."""
        known = self.known_lengths
        fleet = partial(ChatFleet, model=CHAT_MODEL, cost=CHAT_COST, kinds=self.kinds, known_lengths=known)
        requests = self.requests(scale.chat_s, seed)
        region = run(contender, fleet, requests, AgentSettings(self.agents, queueing=self.queueing), seed)
        per_token_s = [
            (served.end_s - served.first_s) / (served.request.output_tokens - 1)
            for served in region.served[len(region.served) // 10 :]
            if served.end_s is not None and served.first_s is not None and served.request.output_tokens > 1
        ]
        return measures(region) | summary("tpot", per_token_s)

    def requests(self, duration_s: float, seed: int) -> list[TraceRequest]:
        """Return the workload of a seed."""
        if self.reuse:
            return generate_conversations(duration_s, self.rate_per_s, Random(seed))
        return generate(duration_s, Random(seed), Arrivals(self.rate_per_s, rate_cv=0.0, dwell_s=duration_s))


def _scenario(name: str, agents: int, rate_per_s: float, *, reuse: bool) -> ChatScenario:
    instances = "1 agent" if agents == 1 else f"{agents} agents"
    name, contenders = f"{name}, {rate_per_s:g}/s, {instances}", (PENSTOCK, *_COMPARED)
    return ChatScenario(
        name=name, kinds=CHAT_ENGINES, agents=agents, contenders=contenders, rate_per_s=rate_per_s, reuse=reuse
    )


CHATS = tuple(_scenario("chats", agents, 15.0, reuse=False) for agents in (1, 3))
REUSE = tuple(_scenario("conversations", agents, 16.0, reuse=True) for agents in (1, 3))

CHAT_SCENARIOS = (*CHATS, *REUSE)


def chat_targets(runs: Mapping[str, Runs]) -> list[Target]:
    """Return the targets of chats from the runs of each scenario."""
    found = []
    for scenario in CHAT_SCENARIOS:
        found += [_no_worse(scenario, runs[scenario.name], metric) for metric in METRICS]
        tail = _best(runs[scenario.name], "e2e_p99_s")
        ratios = versus(runs[scenario.name], "e2e_p99_s", tail)
        found.append(at_most(TAIL, f"1 {scenario.name}: tail e2e_p99_s / best", ratios, f"the best is {tail}"))
    one_agent, three_agents = (runs[scenario.name] for scenario in REUSE)
    for metric in ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s", "gpu_s"):
        ratios = ratio(values_of(three_agents, PENSTOCK, metric), values_of(one_agent, PENSTOCK, metric))
        found.append(at_most(LIKE_ONE, f"2 three agents / one, conversations: {metric}", ratios))
    for scenario in CHAT_SCENARIOS:
        ratios = mean(values_of(runs[scenario.name], PENSTOCK, "use_cv"))
        found.append(at_most(0.15, f"6 variation of use across like engines: {scenario.name}", ratios))
    return found


def _no_worse(scenario: Scenario, runs: Runs, metric: str) -> Target:
    best = _best(runs, metric)
    return at_most(WORSE, f"1 {scenario.name}: {metric} / best", versus(runs, metric, best), f"the best is {best}")


def _best(runs: Runs, metric: str) -> str:
    """Return the baseline with the lowest mean of a metric."""
    return min(_COMPARED, key=lambda name: sum(values_of(runs, name, metric)))
