"""Both daemons' metrics: documented names and labels, bounded labels, and a low cost on the request path."""

from __future__ import annotations

import sys
from math import inf
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from adapters.files.certificate_expiry import CertificateExpiry
from control_plane import metrics as control_plane_metrics
from control_plane.metrics import (
    ControlPlaneMetrics,
    PoolGauges,
    PublishOutcome,
    RegionGauges,
    ReportOutcome,
)
from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.answers.token_counts import Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.fleet.capacity import Shortfall
from penstock.health.engines.engine_signals import Signal
from penstock.health.engines.gpu_metrics import GpuState
from penstock.health.outlier_ejection import AttemptOutcome
from penstock.health.region_health import RegionState
from penstock.health.version_skew import SkewAgainst
from penstock.meters.objective_tally import ObjectiveTally
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.service_objective import Measure
from penstock.pools.placement import WorkEstimate
from penstock.retries.retry_rules import RetryReason
from penstock.rollout.policy_rollout import Phase
from penstock.routing.reasons import Reason
from penstock.scaling.recommender import Recommendation
from penstock.scaling.replicas import Cause
from penstock.scaling.standby import Takeover
from regional_agent.http.connection_counts import ConnectionCounts
from regional_agent.http.limits import Limits
from regional_agent.telemetry import agent_metrics as agent_metrics
from regional_agent.telemetry.agent_metrics import NO_SERVER, AgentMetrics
from regional_agent.telemetry.label_values import QueueOutcome, RequestKind
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.versions.quality_metrics import PairResult
from tests.support.agent_state import NEVER_READ, endpoint_sample, on_demand_sample, state_sample

AGENT_CONTRACT = {
    "requests": ("counter", {"model", "server", "kind", "outcome"}),
    "refusals": ("counter", {"reason"}),
    "retries": ("counter", {"reason"}),
    "revocations": ("counter", {"state", "reason"}),
    "forwarded_residency_refusals": ("counter", set()),
    "requests_in_flight": ("gauge", {"model"}),
    "requests_queued": ("gauge", {"model"}),
    "pool_use_variation_ratio": ("gauge", {"model"}),
    "ttft_seconds": ("histogram", {"model"}),
    "request_duration_seconds": ("histogram", {"model"}),
    "queue_wait_seconds": ("histogram", {"model", "outcome"}),
    "budget_refusals": ("counter", {"unit"}),
    "budget_used_ratio": ("gauge", set()),
    "tenants_near_limit": ("gauge", set()),
    "budgets_without_leader": ("gauge", set()),
    "ledger_records_lost": ("counter", set()),
    "ledger_spool_bytes": ("gauge", set()),
    "ledger_oldest_segment_age_seconds": ("gauge", set()),
    "queue_priority_wait_seconds": ("counter", {"priority"}),
    "queue_priority_requests": ("counter", {"priority"}),
    "queue_displaced_requests": ("counter", {"priority", "by"}),
    "batch_preemptions": ("counter", set()),
    "slo_requests": ("counter", {"model", "measure", "met"}),
    "slo_target_ratio": ("gauge", {"model", "measure"}),
    "endpoint_in_flight": ("gauge", {"endpoint"}),
    "endpoint_ready": ("gauge", {"endpoint"}),
    "endpoint_warmup_weight": ("gauge", {"endpoint"}),
    "endpoint_ejected": ("gauge", {"endpoint"}),
    "endpoint_ejections": ("counter", {"reason"}),
    "stream_continuations": ("counter", {"outcome"}),
    "event_loop_delay_seconds": ("histogram", set()),
    "endpoint_suspect": ("gauge", {"endpoint"}),
    "endpoint_suspicions": ("counter", {"reason"}),
    "endpoint_version_skew": ("gauge", {"endpoint", "against"}),
    "endpoint_draining": ("gauge", {"endpoint"}),
    "endpoint_asleep": ("gauge", {"endpoint"}),
    "wake_attempts": ("counter", {"model", "action", "result"}),
    "model_without_room_seconds": ("counter", {"model"}),
    "demand_without_row": ("counter", {"counted"}),
    "burst_requests": ("counter", {"model"}),
    "burst_seconds": ("counter", {"model"}),
    "burst_cost": ("counter", {"model"}),
    "evictions": ("counter", {"model"}),
    "model_load_seconds": ("counter", {"model"}),
    "cold_start_seconds": ("gauge", {"model"}),
    "endpoint_slots": ("gauge", {"endpoint"}),
    "endpoint_work_time_ratio": ("gauge", {"endpoint", "work"}),
    "endpoint_slowdown_ratio": ("gauge", {"endpoint"}),
    "endpoint_gpu_utilisation_ratio": ("gauge", {"endpoint"}),
    "endpoint_gpu_memory_used_ratio": ("gauge", {"endpoint"}),
    "endpoint_gpu_temperature_celsius": ("gauge", {"endpoint"}),
    "endpoint_gpu_throttled": ("gauge", {"endpoint"}),
    "endpoint_requests": ("counter", {"endpoint", "outcome"}),
    "endpoint_outages": ("counter", {"endpoint", "cause"}),
    "endpoint_connect_seconds": ("histogram", {"endpoint"}),
    "endpoint_ttft_seconds": ("histogram", {"endpoint"}),
    "endpoint_request_duration_seconds": ("histogram", {"endpoint"}),
    "endpoints_without_series": ("gauge", set()),
    "upstream_connections": ("gauge", {"pool", "state"}),
    "upstream_connections_opened": ("counter", {"pool"}),
    "upstream_connections_failed": ("counter", {"pool"}),
    "upstream_connections_reused": ("counter", {"pool"}),
    "client_connections": ("gauge", {"listener"}),
    "client_connections_accepted": ("counter", {"listener"}),
    "dns_live_regions": ("gauge", {"name"}),
    "client_connections_refused": ("counter", {"limit", "listener"}),
    "endpoint_kv_events_current": ("gauge", {"endpoint"}),
    "engine_signal": ("gauge", {"endpoint", "signal"}),
    "engine_signal_age_seconds": ("gauge", {"endpoint"}),
    "peer_state": ("gauge", {"region", "state"}),
    "peer_rtt_seconds": ("gauge", {"region"}),
    "plan_generation": ("gauge", set()),
    "plan_epoch": ("gauge", set()),
    "config_age_seconds": ("gauge", set()),
    "directory_age_seconds": ("gauge", {"directory"}),
    "file_rejected": ("gauge", {"file"}),
    "certificate_expiry_timestamp_seconds": ("gauge", {"certificate"}),
    "access_log_lines_dropped": ("counter", set()),
    "unreported_ends": ("counter", set()),
    "trace_spans_dropped": ("counter", set()),
    "batch_requests": ("counter", {"event"}),
    "batches_ended": ("counter", {"state"}),
    "batches_running": ("gauge", set()),
    "batch_claims_lost": ("counter", set()),
    "webhooks": ("counter", {"outcome"}),
    "coalesced_requests": ("counter", set()),
    "coalesced_saved_gpu_seconds": ("counter", set()),
    "quality_pairs": ("counter", {"model", "result"}),
    "result_cache_requests": ("counter", {"result"}),
    "result_cache_saved_gpu_seconds": ("counter", set()),
    "result_cache_sent_bytes": ("counter", set()),
    "result_cache_stored_bytes": ("counter", set()),
    "result_cache_memory_bytes": ("gauge", set()),
    "result_cache_redis_failures": ("counter", set()),
    "dns_answers": ("counter", {"name", "answer"}),
    "job_store_failures": ("counter", set()),
    "shared_load_up": ("gauge", set()),
    "shared_load_age_seconds": ("gauge", set()),
    "decision_seconds": ("histogram", set()),
    "inter_token_latency_seconds": ("histogram", {"model"}),
    "time_per_output_token_seconds": ("histogram", {"model"}),
    "gpu_seconds": ("counter", {"tenant", "model"}),
    "input_tokens": ("counter", {"tenant", "model"}),
    "cached_input_tokens": ("counter", {"tenant", "model"}),
    "output_tokens": ("counter", {"tenant", "model"}),
    "estimated_usage": ("counter", {"tenant", "model"}),
    "overhead_gpu_seconds": ("counter", {"tenant", "model"}),
    "engine_prefix_hit_tokens": ("counter", {"endpoint"}),
    "engine_prefix_query_tokens": ("counter", {"endpoint"}),
}

CONTROL_PLANE_CONTRACT = {
    "certificate_expiry_timestamp_seconds": ("gauge", {"certificate"}),
    "leader": ("gauge", set()),
    "fencing_epoch": ("gauge", set()),
    "plan_generation": ("gauge", set()),
    "planning_duration_seconds": ("histogram", set()),
    "planner_fallbacks": ("counter", {"model"}),
    "plan_publishes": ("counter", {"outcome"}),
    "policy_webhooks": ("counter", {"outcome"}),
    "reports": ("counter", {"region", "outcome"}),
    "report_age_seconds": ("gauge", {"region"}),
    "agents_rejecting_config": ("gauge", {"region"}),
    "region_state": ("gauge", {"region", "state"}),
    "region_slots": ("gauge", {"region", "model"}),
    "region_in_flight": ("gauge", {"region", "model"}),
    "overrides": ("gauge", {"kind", "region"}),
    "rollout_phase": ("gauge", {"phase"}),
    "model_rollout_wait_seconds": ("gauge", {"name", "to", "phase"}),
    "region_version_skew": ("gauge", {"region", "model"}),
    "demand_requests_per_second": ("gauge", {"origin", "model"}),
    "capacity_shortfall_slots": ("gauge", {"region", "model", "scenario"}),
    "issuer_keys_age_seconds": ("gauge", {"issuer"}),
    "external_signal_age_seconds": ("gauge", {"signal"}),
    "arc_share": ("gauge", {"origin", "server", "model", "residency"}),
    "policy_info": ("gauge", {"digest"}),
    "forecast_requests_per_second": ("gauge", {"region", "model"}),
    "desired_endpoints": ("gauge", {"region", "model"}),
    "standby_takeover": ("gauge", set()),
    "standby_takeover_seconds": ("gauge", {"stage"}),
    "endpoints": ("gauge", {"region", "model"}),
    "gpu_hourly_cost": ("gauge", {"region", "model"}),
    "egress_hourly_cost": ("gauge", {"origin", "server"}),
    "store_call_duration_seconds": ("histogram", {"operation", "ok"}),
    "watch_restarts": ("counter", set()),
    "leader_changes": ("counter", set()),
    "reports_in_progress": ("gauge", set()),
    "report_intake_duration_seconds": ("histogram", set()),
    "snapshot_age_seconds": ("gauge", set()),
    "budget_leases_short": ("counter", set()),
    "budget_overshoot_ratio": ("gauge", set()),
    "event_loop_delay_seconds": ("histogram", set()),
}


@pytest.fixture
def agent() -> AgentMetrics:
    """An agent with two models and two regions."""
    metrics = AgentMetrics()
    metrics.use_names(["llama", "mixtral"], ["eu-de", "eu-es"])
    return metrics


def done(metrics: AgentMetrics, **changes: object) -> None:
    """Record an ordinary request, with `changes`."""
    facts = {
        "model": "llama",
        "server": "eu-de",
        "kind": ArcReason.HOME,
        "outcome": Outcome.OK,
        "ttft_s": 0.03,
        "total_s": 3.0,
    }
    metrics.ended.count(**(facts | changes))  # type: ignore[arg-type]


class Certificates(CertificateExpiry):
    """The expiry of a certificate without a file."""

    def __init__(self) -> None:
        super().__init__({})

    def by_use(self) -> dict[str, float]:
        return {"identity": 2e9}


def one_of_everything(agent: AgentMetrics) -> None:
    """Call every setter once, so that every metric has a series."""
    agent.certificates = Certificates()
    agent.dns.live_regions = lambda: [(("eu.api.example.com",), 2.0)]
    agent.render()
    done(agent)
    agent.waited("llama", 0.3, QueueOutcome.DISPATCHED)
    agent.queues.displaced(0, 1)
    agent.quality.counted("llama-v2", PairResult.FAILED)
    agent.on_demand.models = on_demand_sample("llama")
    agent.connections.pools = {"endpoints": UpstreamPool()}
    agent.connections.listeners = {"traffic": ConnectionCounts(Limits(), lambda address: False)}
    agent.dns.answered("eu.api.example.com", "eu-de")
    agent.decided(0.00002)
    agent.usage.use_names(["acme"], {"llama": 8.0})
    agent.usage.ended(estimate("acme"), account(USAGE), 6.0, 2.0, 0.9)
    gaps = agent.streams.begin("llama")
    assert gaps is not None
    gaps.wrote(1.0)
    gaps.wrote(1.001)
    agent.endpoints.ejected(AttemptOutcome.STALLED)
    agent.revoked("streaming", Reason.RESIDENCY_DENIED.value)
    endpoint = endpoint_sample(
        signals={Signal.QUEUED: 3.0, Signal.PREFIX_HITS: 6.0, Signal.PREFIX_QUERIES: 8.0},
        kv_events=SimpleNamespace(current=True),
        reported=SimpleNamespace(
            gpus=GpuState(1, 0.9, 0.5, 60.0, False), skews={"llama": SimpleNamespace(against=SkewAgainst.POLICY)}
        ),
    )
    objectives = {"llama": {Measure.FIRST_BYTE: ObjectiveTally(Measure.FIRST_BYTE, 1.5, 0.99)}}
    state = state_sample(
        endpoint, endpoint_sample("gpu-2"), pools={"llama": 1}, tally=SimpleNamespace(objectives=objectives)
    )
    agent.use_state(state, {"llama": 3})


def leading() -> ControlPlaneMetrics:
    """The metrics of a leader with a series of every metric."""
    metrics = ControlPlaneMetrics()
    metrics.certificates = Certificates()
    metrics.render()
    metrics.set_leadership(7)
    metrics.planned(0.004, {"llama": "out of time"})
    metrics.show_shortfalls(
        [
            Shortfall("llama", ("eu-de",), ("eu-de", "eu-es"), None, 2.0, 4.0),
            Shortfall("llama", ("eu-de",), ("eu-de",), "eu-es", 3.0, 6.0),
            Shortfall("llama", ("eu-de",), ("eu-de",), "us-east", 4.0, 8.0),
        ]
    )
    metrics.published(PublishOutcome.PUBLISHED)
    metrics.reported("eu-de", ReportOutcome.ACCEPTED, {"eu-de"})
    metrics.show_regions({"eu-de": RegionGauges(RegionState.HEALTHY, 0.4)})
    metrics.show_pools({("eu-de", "llama"): PoolGauges(64, 12)})
    metrics.show_demand({("eu-de", "llama"): 5.5})
    metrics.show_skews([("eu-de", "llama")])
    metrics.show_overrides([("drain", "eu-de")])
    metrics.capacity.show_takeover(Takeover(("eu-de",), 0.0, ready_after_s=90.0))
    metrics.show_issuers({"corp": 1.0})
    metrics.capacity.show_signals({"matches": 4.0})
    metrics.show_rollout(Phase.CANARY)
    metrics.show_model_rollouts({("chat", "v2", "step"): 5.0})
    arcs = (Arc("eu-de", 0.75, ArcReason.HOME), Arc("eu-es", 0.25, ArcReason.SPILLOVER))
    metrics.show_plan([RegionPlan("eu-de", 41, 7, "d", 0.0, (ClassPlan("llama", "eu-de+eu-es", arcs, ()),))])
    metrics.set_policy("abc")
    metrics.cost.show({("eu-de", "llama"): 12.0}, {("eu-de", "eu-es"): 0.5})
    metrics.capacity.show([Recommendation("eu-de", "llama", 4, 4, 6, Cause.DEMAND, None, 5.0, 9.0, 360.0)])
    metrics.internal.store_called("get", 0.002, ok=True)
    return metrics


def estimate(tenant: str) -> WorkEstimate:
    """A streamed request for tokens."""
    cost = Cost(CostUnit.TOKEN, 0.0001, 0.01)
    return WorkEstimate(tenant, "llama", cost, CostInputs(400), Work(0.01, 2.0), streaming=True)


USAGE = Usage(100, 10, 64)


def account(
    usage: Usage | None, outcome: Outcome = Outcome.OK, *, is_estimated: bool = False, ended_at: float = 1.0
) -> Account:
    found = Account(outcome, "", 200, 0.0, ended_at)
    found.usage, found.is_estimated = usage, is_estimated
    return found


def found(registry: CollectorRegistry, prefix: str) -> dict[str, tuple[str, set[str]]]:
    """Every family of a registry without its prefix: its type, and the labels its samples carry."""
    return {
        family.name.removeprefix(prefix): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in registry.collect()
    }


def test_the_agent_exports_the_agreed_names_types_and_labels(agent: AgentMetrics) -> None:
    one_of_everything(agent)
    assert found(agent.registry, "penstock_agent_") == AGENT_CONTRACT


def test_the_control_plane_exports_the_agreed_names_types_and_labels() -> None:
    assert found(leading().registry, "penstock_") == CONTROL_PLANE_CONTRACT


@pytest.mark.parametrize("metrics", [AgentMetrics(), ControlPlaneMetrics()])
def test_every_metric_has_a_description_and_names_seconds(
    metrics: AgentMetrics | ControlPlaneMetrics,
) -> None:
    for family in metrics.registry.collect():
        assert len(family.documentation) > 15, family.name
        assert not family.name.endswith("_seconds") or "econds" in family.documentation, family.name


def test_the_page_is_prometheus_text(agent: AgentMetrics) -> None:
    one_of_everything(agent)
    for metrics, module in ((agent, agent_metrics), (leading(), control_plane_metrics)):
        families = {family.name for family in text_string_to_metric_families(metrics.render().decode())}
        assert {family.name for family in metrics.registry.collect()} <= families
        assert module.CONTENT_TYPE == "text/plain; version=0.0.4; charset=utf-8"


def test_two_instances_of_each_fit_in_one_process(agent: AgentMetrics) -> None:
    other = AgentMetrics()
    other.use_names(["llama"], ["eu-de"])
    done(agent)
    assert value(agent, "requests_total", HOME_OK) == 1
    assert value(other, "requests_total", HOME_OK) is None
    assert ControlPlaneMetrics().registry is not ControlPlaneMetrics().registry


HOME_OK = {"model": "llama", "server": "eu-de", "kind": "home", "outcome": "ok"}


def value(metrics: AgentMetrics, name: str, labels: dict[str, str] | None = None) -> float | None:
    """One sample of an agent."""
    return metrics.registry.get_sample_value(f"penstock_agent_{name}", labels or {})


def test_a_request_is_counted_and_measured_once(agent: AgentMetrics) -> None:
    done(agent)
    done(agent)
    assert value(agent, "requests_total", HOME_OK) == 2
    assert value(agent, "ttft_seconds_bucket", {"model": "llama", "le": "0.05"}) == 2
    assert value(agent, "ttft_seconds_bucket", {"model": "llama", "le": "0.025"}) == 0
    assert value(agent, "request_duration_seconds_sum", {"model": "llama"}) == 6.0


@pytest.mark.parametrize(
    ("kind", "outcome", "ttft_s", "counted_ttft", "counted_total"),
    [
        ("home", "ok", 0.1, 1, 1),
        ("spillover", "timed_out", None, 0, 1),
        ("home", "client_left", 0.1, 1, 0),
        ("home", "refused", None, 0, 0),
        ("home", "engine_error", None, 0, 0),
        ("forwarded", "ok", 0.1, 0, 0),
    ],
)
def test_only_requests_that_a_client_waited_for_are_measured(
    agent: AgentMetrics, kind: str, outcome: str, ttft_s: float | None, counted_ttft: int, counted_total: int
) -> None:
    done(agent, kind=kind, outcome=outcome, ttft_s=ttft_s)
    assert (value(agent, "ttft_seconds_count", {"model": "llama"}) or 0) == counted_ttft
    assert (value(agent, "request_duration_seconds_count", {"model": "llama"}) or 0) == counted_total


def test_names_invented_by_clients_become_no_labels(agent: AgentMetrics) -> None:
    for number in range(100):
        done(agent, model=f"made-up-{number}", server=f"nowhere-{number}", outcome="refused")
    agent.use_state(state_sample(pools={"made-up-1": 2, "made-up-2": 3}), {"made-up-1": 4})
    text = agent.render().decode()
    assert "made-up" not in text
    assert "nowhere" not in text
    assert value(agent, "requests_total", HOME_OK | {"model": "other", "server": "other", "outcome": "refused"}) == 100
    assert [value(agent, f"requests_{name}", {"model": "other"}) for name in ("in_flight", "queued")] == [4, 5]
    assert len(agent.ended.known) == 0


def test_a_request_refused_before_region_selection_has_no_region_label(agent: AgentMetrics) -> None:
    done(agent, server=NO_SERVER, outcome="refused", ttft_s=None)
    assert value(agent, "requests_total", HOME_OK | {"server": "none", "outcome": "refused"}) == 1


@pytest.mark.parametrize("wrong", [{"kind": "sideways"}, {"outcome": "meh"}])
def test_an_undeclared_label_value_raises(agent: AgentMetrics, wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong.values()))):
        done(agent, **wrong)


def test_a_new_policy_drops_the_series_of_what_it_no_longer_names(agent: AgentMetrics) -> None:
    done(agent)
    done(agent, model="mixtral")
    done(agent, server="eu-es")
    agent.use_state(state_sample(pools={"mixtral": 0}, peers=SimpleNamespace(regions={})), {"mixtral": 4})
    agent.use_names(["llama"], ["eu-de"])
    text = agent.render().decode()
    assert "mixtral" not in text
    assert "eu-es" not in text
    assert value(agent, "requests_total", HOME_OK) == 1
    done(agent, model="mixtral")
    assert value(agent, "requests_total", HOME_OK | {"model": "other"}) == 1


def test_the_kinds_of_requests_are_the_reasons_of_arcs_forwarded_and_burst() -> None:
    assert {kind.value for kind in RequestKind} == {reason.value for reason in ArcReason} | {"forwarded", "burst"}


def test_a_peer_is_in_exactly_one_state_until_it_is_removed(agent: AgentMetrics) -> None:
    peer = SimpleNamespace(health=SimpleNamespace(state=RegionState.FAILED), rtt_s=0.02)
    agent.use_state(state_sample(peers=SimpleNamespace(regions={"eu-es": peer})), {})
    states = {
        state.value: value(agent, "peer_state", {"region": "eu-es", "state": state.value}) for state in RegionState
    }
    assert states == {state.value: float(state is RegionState.FAILED) for state in RegionState}
    assert value(agent, "peer_rtt_seconds", {"region": "eu-es"}) == 0.02
    peer.rtt_s = None
    assert value(agent, "peer_rtt_seconds", {"region": "eu-es"}) is None
    agent.use_state(state_sample(peers=SimpleNamespace(regions={})), {})
    assert "eu-es" not in agent.render().decode()


def test_an_endpoint_can_be_removed(agent: AgentMetrics) -> None:
    agent.use_state(state_sample(endpoint_sample()), {})
    assert value(agent, "endpoint_ready", {"endpoint": "gpu-1"}) == 1
    agent.use_state(state_sample(), {})
    assert "gpu-1" not in agent.render().decode()


def test_variation_of_use_is_that_of_ready_endpoints_of_the_model(agent: AgentMetrics) -> None:
    def used(in_flight: int, slots: int = 4, **changes: object) -> Any:
        endpoint = endpoint_sample(f"gpu-{in_flight}", models=("llama",))
        endpoint.view.in_flight, endpoint.view.slots = in_flight, slots
        vars(endpoint.view).update(changes)
        return endpoint

    agent.use_state(state_sample(used(3), used(2, slots=8), used(0, ready=False), used(1, draining=True)), {})
    assert value(agent, "pool_use_variation_ratio", {"model": "llama"}) == pytest.approx(0.5)
    agent.use_state(state_sample(used(4)), {})
    assert value(agent, "pool_use_variation_ratio", {"model": "llama"}) is None
    agent.use_state(state_sample(used(0), used(0)), {})
    assert value(agent, "pool_use_variation_ratio", {"model": "llama"}) is None


def test_a_configuration_never_received_is_infinitely_old(agent: AgentMetrics) -> None:
    agent.use_state(state_sample(**NEVER_READ), {})
    assert value(agent, "config_age_seconds") == inf
    assert value(agent, "shared_load_age_seconds") == inf
    assert value(agent, "plan_epoch") == 0
    agent.use_state(state_sample(), {})
    assert [value(agent, name) for name in ("plan_epoch", "plan_generation", "config_age_seconds")] == [
        7,
        41,
        0.5,
    ]
    assert [value(agent, name) for name in ("shared_load_up", "shared_load_age_seconds")] == [1, 0.01]


def test_reasons_are_exported_at_zero_so_that_their_first_rise_is_seen(agent: AgentMetrics) -> None:
    assert all(value(agent, "refusals_total", {"reason": reason.value}) == 0 for reason in Reason)
    assert value(agent, "forwarded_residency_refusals_total") == 0
    agent.refused(Reason.SATURATED)
    agent.retried(RetryReason.CONNECT_FAILED)
    agent.forwarded_residency_refused()
    assert value(agent, "refusals_total", {"reason": "saturated"}) == 1
    assert value(agent, "retries_total", {"reason": "connect_failed"}) == 1
    assert value(agent, "forwarded_residency_refusals_total") == 1


def test_labels_are_looked_up_once_for_each_series(agent: AgentMetrics) -> None:
    """The lookup of labels, which costs tens of microseconds, is done once for each series."""
    calls: list[str] = []

    def count(_: FrameType, event: str, __: object) -> None:
        if event in ("call", "c_call"):
            calls.append(event)

    for _ in range(2):
        calls.clear()
        before = sys.getprofile()
        sys.setprofile(count)
        try:
            agent.ended.count("llama", "eu-de", ArcReason.HOME, Outcome.OK, 0.03, 3.0)
        finally:
            sys.setprofile(before)
    assert len(calls) < 12


def test_the_leader_shows_the_fleet_and_a_former_leader_does_not() -> None:
    metrics = leading()
    read = metrics.registry.get_sample_value
    arc = {"origin": "eu-de", "server": "eu-es", "model": "llama", "residency": "eu-de+eu-es"}
    assert read("penstock_leader") == 1
    assert read("penstock_fencing_epoch") == 7
    assert read("penstock_plan_generation") == 41
    assert read("penstock_arc_share", arc) == 0.25
    missing = {"region": "eu-de", "model": "llama"}
    assert read("penstock_capacity_shortfall_slots", {**missing, "scenario": "current"}) == 4.0
    assert read("penstock_capacity_shortfall_slots", {**missing, "scenario": "region_loss"}) == 8.0
    assert read("penstock_region_state", {"region": "eu-de", "state": "healthy"}) == 1
    assert read("penstock_region_state", {"region": "eu-de", "state": "failed"}) == 0
    assert read("penstock_policy_info", {"digest": "abc"}) == 1
    metrics.set_leadership(None)
    assert read("penstock_leader") == 0
    assert read("penstock_fencing_epoch") == 0
    assert read("penstock_policy_info", {"digest": "abc"}) == 1
    gone = (
        "arc_share",
        "capacity_shortfall_slots",
        "region_state",
        "region_slots",
        "region_in_flight",
        "demand_",
        "report_age_seconds",
        "agents_rejecting_config",
    )
    lines = [line for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    assert not [line for line in lines if line.startswith(tuple(f"penstock_{name}" for name in gone))]


def test_shown_series_replace_the_previous_ones() -> None:
    metrics = leading()
    metrics.show_regions({"eu-es": RegionGauges(RegionState.FAILED, inf)})
    metrics.show_pools({("eu-es", "llama"): PoolGauges(8, 0)})
    metrics.show_demand({})
    metrics.show_plan([])
    metrics.set_policy("def")
    read = metrics.registry.get_sample_value
    assert read("penstock_region_state", {"region": "eu-de", "state": "healthy"}) is None
    assert read("penstock_report_age_seconds", {"region": "eu-es"}) == inf
    assert read("penstock_region_slots", {"region": "eu-de", "model": "llama"}) is None
    assert read("penstock_policy_info", {"digest": "abc"}) is None


def test_a_report_of_an_unknown_region_creates_no_series() -> None:
    metrics = ControlPlaneMetrics()
    for number in range(100):
        metrics.reported(f"nowhere-{number}", ReportOutcome.UNKNOWN_REGION, {"eu-de"})
    assert "nowhere" not in metrics.render().decode()
    labels = {"region": "other", "outcome": "unknown_region"}
    assert metrics.registry.get_sample_value("penstock_reports_total", labels) == 100


ACME = {"tenant": "acme", "model": "llama"}


def test_usage_is_counted_by_tenant_and_model(agent: AgentMetrics) -> None:
    one_of_everything(agent)
    names = ("gpu_seconds_total", "input_tokens_total", "cached_input_tokens_total", "output_tokens_total")
    assert [value(agent, name, ACME) for name in names] == [24.0, 100, 64, 10]
    assert value(agent, "time_per_output_token_seconds_sum", {"model": "llama"}) == pytest.approx(0.1)
    assert value(agent, "inter_token_latency_seconds_count", {"model": "llama"}) == 1
    assert value(agent, "engine_prefix_hit_tokens_total", {"endpoint": "gpu-1"}) == 6


def test_every_response_is_counted_at_any_rate(agent: AgentMetrics) -> None:
    usage = agent.usage
    usage.use_names(["acme"], {"llama": 1.0})
    for _ in range(1000):
        usage.ended(estimate("acme"), account(USAGE), 1.0, 1.0, None)
    assert value(agent, "input_tokens_total", ACME) == 100_000
    assert value(agent, "estimated_usage_total", ACME) == 0
    usage.ended(estimate("acme"), account(USAGE, Outcome.CLIENT_LEFT, is_estimated=True), 1.0, 1.0, 0.5)
    assert value(agent, "input_tokens_total", ACME) == 100_100
    assert value(agent, "estimated_usage_total", ACME) == 1


def test_what_the_fleet_causes_is_overhead_and_not_the_tenants(agent: AgentMetrics) -> None:
    usage = agent.usage
    usage.use_names(["acme"], {"llama": 2.0})
    usage.ended(estimate("acme"), account(USAGE, Outcome.ENGINE_CUT), 3.0, 1.0, None)
    usage.overhead(estimate("acme"), 1.0, 2.0)
    names = ("gpu_seconds_total", "input_tokens_total", "overhead_gpu_seconds_total")
    assert [value(agent, name, ACME) for name in names] == [0.0, 0, 7.0]


def test_a_directory_that_never_answered_is_infinitely_old(agent: AgentMetrics) -> None:
    state = state_sample()
    state.endpoints.sources.discovery.ages_s = lambda: {"dns:gpu.test": inf}
    agent.use_state(state, {})
    assert value(agent, "directory_age_seconds", {"directory": "dns:gpu.test"}) == inf
    assert value(agent, "directory_age_seconds", {"directory": "dns:other.test"}) is None
