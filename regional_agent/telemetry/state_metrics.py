"""The Prometheus metrics of an agent's state: read from its parts at a scrape."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf, sqrt
from typing import Any, Final

from prometheus_client import CollectorRegistry

from penstock.health.region_health import RegionState
from regional_agent.telemetry.agent_state import AgentState
from regional_agent.telemetry.metric_primitives import counter_family, gauge_family

Values = Iterable[tuple[tuple[str, ...], float]]
"""The values of a metric, each with its labels."""

Read = Callable[[AgentState], float | Values]


def _plan(field: str, state: AgentState) -> float:
    value: int = getattr(state.config.plan, field, 0)
    return value


def _by_name(values: Mapping[str, float]) -> Values:
    return (((name,), value) for name, value in values.items())


def _peer_states(state: AgentState) -> Values:
    for region, peer in state.peers.regions.items():
        yield from (((region, each.value), each is peer.health.state) for each in RegionState)


def _objectives(state: AgentState) -> Values:
    for model, tallies in state.tally.objectives.items():
        yield from (((model, measure.value), tally.share) for measure, tally in tallies.items())


def _objective_requests(state: AgentState) -> Values:
    for model, tallies in state.tally.objectives.items():
        for measure, tally in tallies.items():
            yield (model, measure.value, "true"), tally.within
            yield (model, measure.value, "false"), tally.answers - tally.within


def _use_variations(state: AgentState) -> Values:
    used = defaultdict[str, list[float]](list)
    for endpoint in state.endpoints.every():
        view = endpoint.view
        if view.ready and not view.draining and view.slots and not endpoint.spec.burst:
            for model in endpoint.models:
                used[model].append(view.in_flight / view.slots)
    for model, shares in used.items():
        mean = sum(shares) / len(shares)
        if mean > 0.0 and len(shares) > 1:
            yield (model,), sqrt(sum((share - mean) ** 2 for share in shares) / len(shares)) / mean


def _segment_age(state: AgentState) -> float:
    oldest_at = state.ledger.spool.use.oldest_at
    return 0.0 if oldest_at is None else max(0.0, time.time() - oldest_at)


_GAUGES: Final[dict[str, tuple[str, tuple[str, ...], Read]]] = {
    "peer_state": (
        "1 for the health state that this agent assigns to a peer region, 0 for the others.",
        ("region", "state"),
        _peer_states,
    ),
    "peer_rtt_seconds": (
        "Smoothed round trip of probes to a peer region's agent, in seconds.",
        ("region",),
        lambda state: (((name,), peer.rtt_s) for name, peer in state.peers.regions.items() if peer.rtt_s is not None),
    ),
    "plan_generation": ("Generation of the plan in force; 0 before the first.", (), partial(_plan, "generation")),
    "plan_epoch": ("Fencing epoch of the plan in force; 0 before the first.", (), partial(_plan, "epoch")),
    "config_age_seconds": (
        "Seconds since the store last confirmed the policy and plan in force; +Inf before the first time.",
        (),
        lambda state: state.config.age_s(),
    ),
    "shared_load_up": (
        "1 while the region's shared load (Redis) is reachable, else 0.",
        (),
        lambda state: state.shared_load.up,
    ),
    "shared_load_age_seconds": (
        "Seconds since the region's shared load was read; +Inf before the first read.",
        (),
        lambda state: state.shared_load.age_s() if state.shared_load.shared else inf,
    ),
    "directory_age_seconds": (
        "Seconds since a directory that the endpoints file names last answered; +Inf before the first answer.",
        ("directory",),
        lambda state: _by_name(state.endpoints.sources.discovery.ages_s()),
    ),
    "file_rejected": (
        "1 if a changed file of this kind was rejected, so that its last valid content stays in force; else 0.",
        ("file",),
        lambda state: (((kind,), bool(problem)) for kind, problem in state.file_problems().items()),
    ),
    "pool_use_variation_ratio": (
        "Standard deviation of the used share of slots among the ready endpoints of a model, relative to its mean; no"
        " series without requests, or with fewer than two endpoints.",
        ("model",),
        _use_variations,
    ),
    "slo_target_ratio": (
        "Target share (0-1) of requests that meet a service objective, by model and measure.",
        ("model", "measure"),
        _objectives,
    ),
    "ledger_spool_bytes": (
        "Size in bytes of the files of the ledger that wait for the usage store or are written.",
        (),
        lambda state: state.ledger.spool.use.total_bytes,
    ),
    "ledger_oldest_segment_age_seconds": (
        "Age in seconds of the oldest complete segment that is not in the usage store yet; 0 without one.",
        (),
        _segment_age,
    ),
}
"""Help text, labels and values of each gauge, by name."""

_COUNTERS: Final[dict[str, tuple[str, tuple[str, ...], Read]]] = {
    "slo_requests": (
        "Served or failed requests for a model with a service objective, by the measure of the objective (the first"
        " byte of streams, the total time of other responses), and by whether they met it.",
        ("model", "measure", "met"),
        _objective_requests,
    ),
    "ledger_records_lost": (
        "Records of the ledger that were lost because the spool had no room; the requests were served.",
        (),
        lambda state: state.ledger.spool.lost_records,
    ),
    "demand_without_row": (
        "Requests of priorities and residency classes for which the table of reported demand was full, by whether"
        " another row of their model counts them (`merged`), or none (`lost`).",
        ("counted",),
        lambda state: ((("merged",), state.demand.rows.merged), (("lost",), state.demand.rows.lost)),
    ),
    "burst_requests": (
        "Requests that this agent has sent to burst endpoints.",
        ("model",),
        lambda state: _by_name(state.burst.requests),
    ),
    "burst_seconds": (
        "Seconds of ended requests at burst endpoints, cold starts included.",
        ("model",),
        lambda state: _by_name(state.burst.used_s),
    ),
    "burst_cost": (
        "Cost of ended requests at burst endpoints, in the currency of the policy, by the region's price per second.",
        ("model",),
        lambda state: _by_name(state.burst.cost),
    ),
}
"""Help text, labels and values of each counter, by name."""


class StateMetrics:
    """Registers the metrics of a state, which have no series before `state` is set."""

    def __init__(self, registry: CollectorRegistry, label_of: Callable[[str], str]) -> None:
        """`label_of` returns the label of a model."""
        self.state: AgentState | None = None
        self.in_flight: Mapping[str, int] = {}
        """Requests in progress in this agent, by model."""
        self._label_of = label_of
        for family, metrics in ((gauge_family, _GAUGES), (counter_family, _COUNTERS)):
            for name, (help_text, labels, read) in metrics.items():
                registry.register(family(f"penstock_agent_{name}", help_text, labels, partial(self._values, read)))
        for name, help_text, count in (
            ("requests_in_flight", "Requests in progress in this agent, by model.", self._in_flight_of),
            (
                "requests_queued",
                "Requests in this agent's admission queue, by model; included in requests_in_flight.",
                self._queued_of,
            ),
        ):
            by_model = partial(self._by_model, count)
            registry.register(gauge_family(f"penstock_agent_{name}", help_text, ("model",), by_model))

    def _values(self, read: Read) -> Values:
        if self.state is None:
            return ()
        found: Any = read(self.state)
        return [((), float(found))] if isinstance(found, int | float) else found

    def _by_model(self, count: Callable[[AgentState, str], int]) -> Values:
        found = Counter[str]()
        if self.state is not None:
            for model in self.state.endpoints.pools:
                found[self._label_of(model)] += count(self.state, model)
        return _by_name(found)

    def _in_flight_of(self, state: AgentState, model: str) -> int:
        return self.in_flight.get(model, 0)

    def _queued_of(self, state: AgentState, model: str) -> int:
        return state.queues.waiting_here(model)
