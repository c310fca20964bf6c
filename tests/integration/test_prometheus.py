"""The rules and the dashboard on a real Prometheus: alerts fire when they should, and every panel gets an answer.

Needs `promtool` and `prometheus` (Debian: the package `prometheus`; or any release), on PATH or named by PROMTOOL and
PROMETHEUS; skips without them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml

from control_plane.metrics import (
    ControlPlaneMetrics,
    PoolGauges,
    PublishOutcome,
    RegionGauges,
    ReportOutcome,
)
from dashboards.__main__ import BOARDS, GENERATED
from dashboards.alerts import ALERTS
from dashboards.boards.board import ALERTS_FIRING
from dashboards.recording_rules import STATE_CODES
from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Counts, Outcome
from penstock.answers.token_counts import Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.fleet.capacity import Shortfall
from penstock.health.engines.engine_signals import Signal
from penstock.health.engines.gpu_metrics import GpuState
from penstock.health.outlier_ejection import AttemptOutcome, EjectionState
from penstock.health.progress import StallReason
from penstock.health.region_health import RegionState
from penstock.health.version_skew import SkewAgainst
from penstock.meters.objective_tally import ObjectiveTally
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.policy.kinds.models import Cost, CostUnit, Model
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.service_objective import Measure
from penstock.pools.placement import WorkEstimate
from penstock.retries.retry_rules import RetryReason
from penstock.rollout.model_rollout import ModelPhase
from penstock.rollout.policy_rollout import Phase
from penstock.routing.reasons import Reason
from penstock.scaling.recommender import Recommendation
from penstock.scaling.replicas import Cause
from penstock.scaling.standby import Takeover
from penstock.tenancy.budget_lease import BudgetKey, BudgetLease
from penstock.tenancy.without_leader import full_rate
from regional_agent.http.connection_counts import ConnectionCounts
from regional_agent.http.limits import Limits
from regional_agent.result_cache.result_cache_metrics import HIT
from regional_agent.telemetry.agent_metrics import CONTENT_TYPE, AgentMetrics
from regional_agent.telemetry.label_values import ContinuationOutcome, QueueOutcome, RequestKind
from regional_agent.tenants.tenant_budgets import TenantBudgets
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.agent_state import endpoint_sample, on_demand_sample, state_sample

RULES = GENERATED / "rules.yaml"

PROMTOOL = shutil.which(os.environ.get("PROMTOOL", "promtool"))
PROMETHEUS = shutil.which(os.environ.get("PROMETHEUS", "prometheus"))
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="no promtool on PATH or in PROMTOOL")
needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on PATH or in PROMETHEUS")

AGENT = 'site="eu-de",agent="a1"'
VERSION = 'name="chat",to="v2"'
KEPT_ALIVE = 'instance="c1",operation="keep_alive",ok="true"'

FIRES: list[tuple[str, dict[str, str], str]] = [
    (
        "PenstockForwardedResidencyRefused",
        {f"penstock_agent_forwarded_residency_refusals_total{{{AGENT}}}": "0 0 0 0 1+0x40"},
        "2m",
    ),
    (
        "PenstockNoLeader",
        {'penstock_leader{instance="c1"}': "1 1 0x40", 'penstock_leader{instance="c2"}': "0x40"},
        "2m",
    ),
    ("PenstockNoLeader", {}, "2m"),
    (
        "PenstockSeveralLeaders",
        {'penstock_leader{instance="c1"}': "1x40", 'penstock_leader{instance="c2"}': "1x40"},
        "2m",
    ),
    (
        "PenstockPlanNotPublished",
        {
            "penstock_leader": "1x80",
            'penstock_plan_publishes_total{outcome="published"}': "7+0x80",
            'penstock_plan_publishes_total{outcome="store_unavailable"}': "0+1x80",
        },
        "5m",
    ),
    (
        "PenstockNameWithoutRegion",
        {f'penstock_agent_dns_live_regions{{{AGENT},name="api.example.com"}}': "1 1 0x40"},
        "2m",
    ),
    (
        "PenstockRegionFailed",
        {
            "penstock_leader": "1x40",
            'penstock_region_state{region="eu-de",state="failed"}': "0 0 1x40",
            'penstock_region_state{region="eu-de",state="healthy"}': "1 1 0x40",
        },
        "2m",
    ),
    (
        "PenstockRegionDegraded",
        {
            "penstock_leader": "1x100",
            'penstock_region_state{region="eu-de",state="degraded"}': "0 0 1x100",
            'penstock_region_state{region="eu-de",state="healthy"}': "1 1 0x100",
        },
        "7m",
    ),
    (
        "PenstockCertificateExpiresNow",
        {f'penstock_agent_certificate_expiry_timestamp_seconds{{{AGENT},certificate="identity"}}': "172800+0x80"},
        "6m",
    ),
    (
        "PenstockCertificateExpiresSoon",
        {'penstock_certificate_expiry_timestamp_seconds{instance="c1",certificate="api"}': "864000+0x80"},
        "6m",
    ),
    ("PenstockReportsOld", {'penstock_report_age_seconds{region="eu-de"}': "1+5x40"}, "2m"),
    ("PenstockPlanRefused", {'penstock_agents_rejecting_config{region="eu-de"}': "2+0x40"}, "2m"),
    ("PenstockConfigOld", {f"penstock_agent_config_age_seconds{{{AGENT}}}": "0+5x80"}, "6m"),
    ("PenstockConfigOld", {f"penstock_agent_config_age_seconds{{{AGENT}}}": "+Inf+0x80"}, "6m"),
    (
        "PenstockDirectorySilent",
        {f'penstock_agent_directory_age_seconds{{{AGENT},directory="dns:gpu"}}': "600+15x80"},
        "6m",
    ),
    ("PenstockFileRejected", {f'penstock_agent_file_rejected{{{AGENT},file="endpoints"}}': "1+0x80"}, "6m"),
    (
        "PenstockSaturated",
        {
            'penstock_region_in_flight{region="eu-de",model="m"}': "99x80",
            'penstock_region_slots{region="eu-de",model="m"}': "100x80",
        },
        "4m",
    ),
    (
        "PenstockShedding",
        {
            f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="refused"}}': "0+5x80",
            f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="ok"}}': "0+100x80",
        },
        "4m",
    ),
    (
        "PenstockObjectiveMissed",
        {
            f'penstock_agent_slo_target_ratio{{{AGENT},measure="first_byte",model="m"}}': "0.99x80",
            f'penstock_agent_slo_requests_total{{{AGENT},measure="first_byte",model="m",met="true"}}': "0+80x80",
            f'penstock_agent_slo_requests_total{{{AGENT},measure="first_byte",model="m",met="false"}}': "0+20x80",
        },
        "4m",
    ),
    (
        "PenstockObjectiveMissedSlowly",
        {
            "penstock_leader": "1x300",
            'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x300",
            f'penstock_agent_slo_target_ratio{{{AGENT},measure="first_byte",model="m"}}': "0.99x300",
            f'penstock_agent_slo_requests_total{{{AGENT},measure="first_byte",model="m",met="true"}}': "0+92x300",
            f'penstock_agent_slo_requests_total{{{AGENT},measure="first_byte",model="m",met="false"}}': "0+8x300",
        },
        "20m",
    ),
    ("PenstockRolloutHeld", {f'penstock_rollout_phase{{phase="{Phase.CANARY_HELD}"}}': "1x40"}, "2m"),
    ("PenstockPolicyRolledBack", {f'penstock_rollout_phase{{phase="{Phase.ROLLED_BACK}"}}': "1x40"}, "2m"),
    (
        "PenstockModelRolloutWaits",
        {f'penstock_model_rollout_wait_seconds{{{VERSION},phase="{ModelPhase.STEP}"}}': "3500+5x80"},
        "3m",
    ),
    (
        "PenstockModelRolledBack",
        {f'penstock_model_rollout_wait_seconds{{{VERSION},phase="{ModelPhase.ROLLED_BACK}"}}': "0x40"},
        "2m",
    ),
    (
        "PenstockEndpointSuspect",
        {f'penstock_agent_endpoint_suspect{{{AGENT},endpoint="gpu-1"}}': "0 1 1x120"},
        "5m",
    ),
    (
        "PenstockEndpointSlow",
        {f'penstock_agent_endpoint_slowdown_ratio{{{AGENT},endpoint="gpu-1"}}': "1.3x200"}
        | {"penstock_leader": "1x200", 'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x200"},
        "12m",
    ),
    (
        "PenstockVersionSkew",
        {f'penstock_agent_endpoint_version_skew{{{AGENT},endpoint="gpu-1",against="policy"}}': "1x500"}
        | {"penstock_leader": "1x500", 'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x500"},
        "35m",
    ),
    (
        "PenstockRegionVersionSkew",
        {'penstock_region_version_skew{region="eu-de",model="m"}': "1x20", "penstock_leader": "1x20"},
        "0d3h",
    ),
    (
        "PenstockWakeFails",
        {f'penstock_agent_wake_attempts_total{{{AGENT},model="m",action="wake",result="failed"}}': "0+1x200"}
        | {"penstock_leader": "1x200", 'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x200"},
        "12m",
    ),
    (
        "PenstockModelWithoutRoom",
        {f'penstock_agent_model_without_room_seconds_total{{{AGENT},model="m"}}': "0+3x200"}
        | {"penstock_leader": "1x200", 'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x200"},
        "12m",
    ),
    (
        "PenstockQualityHookFails",
        {f'penstock_agent_quality_pairs_total{{{AGENT},model="m",result="failed"}}': "0+1x200"}
        | {f'penstock_agent_quality_pairs_total{{{AGENT},model="m",result="scored"}}': "0+4x200"}
        | {"penstock_leader": "1x200", 'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x200"},
        "12m",
    ),
    (
        "PenstockEndpointDown",
        {f'penstock_agent_endpoint_ready{{{AGENT},endpoint="gpu-1"}}': "0x500"}
        | {f'penstock_agent_endpoint_draining{{{AGENT},endpoint="gpu-1"}}': "0x500"}
        | {"penstock_leader": "1x500", 'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x500"},
        "35m",
    ),
    ("PenstockSharedLoadDown", {f"penstock_agent_shared_load_up{{{AGENT}}}": "0x40"}, "2m"),
    (
        "PenstockAvailabilityLow",
        {
            f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="engine_error"}}': "0+2x80",
            f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="ok"}}': "0+98x80",
        },
        "5m",
    ),
    (
        "PenstockAvailabilityEroding",
        {
            "penstock_leader": "1x300",
            'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x300",
            f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="timed_out"}}': "0+1x300",
            f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="ok"}}': "0+99x300",
        },
        "20m",
    ),
    (
        "PenstockQueueSaturated",
        {
            f'penstock_agent_queue_wait_seconds_count{{{AGENT},model="m",outcome="abandoned"}}': "0+1x80",
            f'penstock_agent_queue_wait_seconds_count{{{AGENT},model="m",outcome="dispatched"}}': "0+4x80",
        },
        "4m",
    ),
    (
        "PenstockCapacityBelowRecommended",
        {
            "penstock_leader": "1x500",
            'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x500",
            'penstock_desired_endpoints{region="eu-de",model="m"}': "6x500",
            'penstock_endpoints{region="eu-de",model="m"}': "5x500",
        },
        "35m",
    ),
    (
        "PenstockDemandUnusual",
        {
            "penstock_leader": "1x1100",
            'penstock_demand_requests_per_second{origin="eu-de",model="m"}': "10x1008 30x90",
            'penstock_demand_requests_per_second{origin="eu-es",model="m"}': "10x1100",
            'penstock_demand_requests_per_second{origin="eu-fr",model="m"}': "0.01x1008 0.09x90",
            # A surge; the other one came a week ago too, ten minutes later.
            'penstock_demand_requests_per_second{origin="eu-de",model="n"}': "10x1019 25x70",
            'penstock_demand_requests_per_second{origin="eu-es",model="n"}': "10x12 25x983 10x22 25x70",
        },
        "7d2h",
    ),
    (
        "PenstockDemandSurge",
        {
            "penstock_leader": "1x200",
            'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x200",
            'penstock_demand_requests_per_second{origin="eu-de",model="m"}': "10x120 25x80",
            'penstock_demand_requests_per_second{origin="eu-es",model="m"}': "10x120 18x80",
            'penstock_demand_requests_per_second{origin="eu-fr",model="m"}': "0.01x120 0.9x80",
            'penstock_demand_requests_per_second{origin="eu-fr",model="new"}': "_x120 9x80",
        },
        "14m",
    ),
    (
        "PenstockRegionLossUncovered",
        {
            "penstock_leader": "1x500",
            'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x500",
            'penstock_capacity_shortfall_slots{region="eu-de",model="m",scenario="region_loss"}': "6x500",
        },
        "35m",
    ),
    (
        "PenstockEndpointEjections",
        {f'penstock_agent_endpoint_ejections_total{{{AGENT},reason="unreachable"}}': "0 0 0 1 2 3 4 5 6 7 8x60"},
        "3m",
    ),
    ("PenstockAgentDown", {f'up{{job="penstock-agent",{AGENT}}}': "1 1 0x60"}, "3m"),
    ("PenstockAccessLogDropped", {f"penstock_agent_access_log_lines_dropped_total{{{AGENT}}}": "0 0 0 5+0x60"}, "2m"),
    (
        "PenstockDemandNotReported",
        {f'penstock_agent_demand_without_row_total{{{AGENT},counted="lost"}}': "0 0 0 5+0x60"},
        "2m",
    ),
    ("PenstockLedgerRecordsLost", {f"penstock_agent_ledger_records_lost_total{{{AGENT}}}": "0 0 0 5+0x60"}, "2m"),
    (
        "PenstockLedgerNotStored",
        {f"penstock_agent_ledger_oldest_segment_age_seconds{{{AGENT}}}": "1700+5x80"},
        "6m",
    ),
    (
        "PenstockLeaderFlapping",
        {
            "penstock_leader": "1x80",
            'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x80",
            'penstock_leader_changes_total{instance="c1"}': "1 1 1 2 2 3 3 4x60",
            'penstock_leader_changes_total{instance="c2"}': "0 0 0 0 1 1 2 2x60",
        },
        "2m",
    ),
    ("PenstockPlannerFallback", {'penstock_planner_fallbacks_total{model="m"}': "0+1x80"}, "2m"),
    (
        "PenstockPlannerSlow",
        {
            'penstock_planning_duration_seconds_bucket{le="0.25"}': "0+1x200",
            'penstock_planning_duration_seconds_bucket{le="0.5"}': "0+10x200",
            'penstock_planning_duration_seconds_bucket{le="+Inf"}': "0+10x200",
            "penstock_leader": "1x200",
            'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x200",
        },
        "12m",
    ),
    (
        "PenstockStoreSlow",
        {
            f'penstock_store_call_duration_seconds_bucket{{{KEPT_ALIVE},le="{le}"}}': f"0+{count}x120"
            for le, count in (("0.5", 8), ("1.0", 10), ("+Inf", 10))
        },
        "6m",
    ),
    (
        "PenstockEventLoopStalled",
        {'penstock_event_loop_delay_seconds_bucket{instance="c1",le="1.0"}': "0+49x120"}
        | {'penstock_event_loop_delay_seconds_count{instance="c1"}': "0+50x120"},
        "6m",
    ),
    (
        "PenstockReportIntakeSlow",
        {
            f'penstock_report_intake_duration_seconds_bucket{{instance="c1",le="{le}"}}': f"0+{count}x120"
            for le, count in (("0.5", 8), ("1.0", 10), ("+Inf", 10))
        },
        "6m",
    ),
]
"""Alert, the series that must set it off (a sample each 5 s), and the time by which."""

ALSO = {"PenstockShedding": ["PenstockAvailabilityLow"], "PenstockDemandUnusual": ["PenstockDemandSurge"]}
"""What else fires for an alert's series, because they are about both."""

WELL = {
    'penstock_demand_requests_per_second{origin="eu-de",model="m"}': "10x80",
    'penstock_certificate_expiry_timestamp_seconds{instance="c1",certificate="api"}': "8640000+0x80",
    f'penstock_agent_certificate_expiry_timestamp_seconds{{{AGENT},certificate="identity"}}': "8640000+0x80",
    f"penstock_agent_forwarded_residency_refusals_total{{{AGENT}}}": "0x80",
    f'penstock_agent_dns_live_regions{{{AGENT},name="api.example.com"}}': "1x80",
    'penstock_event_loop_delay_seconds_count{instance="c1"}': "0+50x80",
    'penstock_event_loop_delay_seconds_bucket{instance="c1",le="1.0"}': "0+50x80",
    'penstock_leader{instance="c1"}': "1x80",
    'penstock_leader{instance="c2"}': "0x80",
    'penstock_plan_publishes_total{outcome="published"}': "7+0x80",
    'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x80",
    'penstock_region_state{region="eu-de",state="failed"}': "0x80",
    'penstock_region_state{region="eu-de",state="healthy"}': "1x80",
    'penstock_report_age_seconds{region="eu-de"}': "1x80",
    'penstock_agents_rejecting_config{region="eu-de"}': "0x80",
    f"penstock_agent_config_age_seconds{{{AGENT}}}": "1x80",
    f'penstock_agent_directory_age_seconds{{{AGENT},directory="dns:gpu"}}': "30x80",
    f'penstock_agent_file_rejected{{{AGENT},file="endpoints"}}': "0x80",
    'penstock_region_in_flight{region="eu-de",model="m"}': "80x80",
    'penstock_region_slots{region="eu-de",model="m"}': "100x80",
    f'penstock_agent_requests_total{{{AGENT},kind="forwarded",outcome="refused"}}': "0+50x80",
    f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="ok"}}': "0+100x80",
    f"penstock_agent_shared_load_up{{{AGENT}}}": "1x80",
    f'penstock_agent_demand_without_row_total{{{AGENT},counted="lost"}}': "0x80",
    f'penstock_agent_demand_without_row_total{{{AGENT},counted="merged"}}': "0+5x80",
    f"penstock_agent_ledger_records_lost_total{{{AGENT}}}": "0x80",
    f"penstock_agent_ledger_oldest_segment_age_seconds{{{AGENT}}}": "30x80",
    f'penstock_agent_endpoint_suspect{{{AGENT},endpoint="gpu-1"}}': "0 1 1 0x80",
    f'penstock_agent_endpoint_slowdown_ratio{{{AGENT},endpoint="gpu-1"}}': "1.1x80",
    f'penstock_agent_endpoint_version_skew{{{AGENT},endpoint="gpu-1",against="engine"}}': "1x40 0x40",
    'penstock_region_version_skew{region="eu-de",model="m"}': "1x40",
    f'penstock_agent_wake_attempts_total{{{AGENT},model="m",action="wake",result="failed"}}': "0x10 2x70",
    f'penstock_agent_model_without_room_seconds_total{{{AGENT},model="m"}}': "0x10 20x70",
    f'penstock_agent_quality_pairs_total{{{AGENT},model="m",result="failed"}}': "0+1x80",
    f'penstock_agent_quality_pairs_total{{{AGENT},model="m",result="scored"}}': "0+19x80",
    f'penstock_agent_endpoint_ready{{{AGENT},endpoint="gpu-1"}}': "0x80",
    f'penstock_agent_endpoint_draining{{{AGENT},endpoint="gpu-1"}}': "1x80",
    f'penstock_agent_slo_target_ratio{{{AGENT},measure="first_byte",model="m"}}': "0.99x80",
    f'penstock_agent_slo_requests_total{{{AGENT},measure="first_byte",model="m",met="true"}}': "0+98x80",
    f'penstock_agent_slo_requests_total{{{AGENT},measure="first_byte",model="m",met="false"}}': "0+2x80",
    f'penstock_agent_slo_target_ratio{{{AGENT},model="idle"}}': "0.99x80",
    f'penstock_agent_slo_requests_total{{{AGENT},model="idle",met="true"}}': "0x80",
    f'penstock_agent_slo_requests_total{{{AGENT},model="idle",met="false"}}': "0x80",
    f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="client_left"}}': "0+50x80",
    f'penstock_agent_requests_total{{{AGENT},kind="home",outcome="client_error"}}': "0+50x80",
    f'penstock_agent_queue_wait_seconds_count{{{AGENT},model="m",outcome="abandoned"}}': "0+1x80",
    f'penstock_agent_queue_wait_seconds_count{{{AGENT},model="m",outcome="dispatched"}}': "0+40x80",
    'penstock_desired_endpoints{region="eu-de",model="m"}': "6x80",
    'penstock_endpoints{region="eu-de",model="m"}': "6x80",
    'penstock_capacity_shortfall_slots{region="eu-de",model="m",scenario="region_loss"}': "6x20 0x60",
    f'penstock_agent_endpoint_ejections_total{{{AGENT},reason="unreachable"}}': "0 0 0 1 2 3x80",
    f'up{{job="penstock-agent",{AGENT}}}': "1 1 0x10 1x60",
    f"penstock_agent_access_log_lines_dropped_total{{{AGENT}}}": "0x80",
    'penstock_leader_changes_total{instance="c1"}': "1 1 1 2x80",
    'penstock_planner_fallbacks_total{model="m"}': "0 0 1 1 2x80",
    'penstock_rollout_phase{phase="canary"}': "1x80",
    f'penstock_model_rollout_wait_seconds{{{VERSION},phase="{ModelPhase.PREPARING}"}}': "0+5x80",
    **{
        f'penstock_planning_duration_seconds_bucket{{le="{le}"}}': f"0+{count}x80"
        for le, count in (("0.25", 10), ("0.5", 10), ("+Inf", 10))
    },
    **{
        f'penstock_store_call_duration_seconds_bucket{{{KEPT_ALIVE},le="{le}"}}': f"0+{count}x80"
        for le, count in (("0.5", 10), ("1.0", 10), ("+Inf", 10))
    },
    **{
        f'penstock_report_intake_duration_seconds_bucket{{instance="c1",le="{le}"}}': f"0+{count}x80"
        for le, count in (("0.5", 10), ("1.0", 10), ("+Inf", 10))
    },
}
"""A fleet without any condition that alerts."""


@cache
def rule_groups() -> list[dict[str, Any]]:
    """The groups of the generated rules."""
    groups: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return groups


def firing(tmp_path: Path, series: dict[str, str], at: str, expected: list[str]) -> str:
    """Run promtool: exactly `expected` must fire at `at`; returns its error output, empty on success. The samples of
    series have 5 s between them, and 10 min where `at` is in days."""
    days = "d" in at
    # Evaluations take the CPU time of a case, and an alert that waits for many minutes needs few.
    evaluations = "10m" if days else "30s" if int(at.rstrip("m")) >= 10 else "15s" if int(at.rstrip("m")) >= 5 else "5s"
    rules, groups = RULES, rule_groups()
    if days:
        # A week has a thousand evaluations: only of the rules that read the series.
        metrics = {name.partition("{")[0] for name in series}
        read = [[rule for rule in each["rules"] if any(name in rule["expr"] for name in metrics)] for each in groups]
        groups = [{**group, "rules": rules} for group, rules in zip(groups, read, strict=True)]
        rules = tmp_path / "rules.yaml"
        rules.write_text(yaml.safe_dump({"groups": groups}))
    case = {
        "rule_files": [str(rules)],
        "evaluation_interval": evaluations,
        # Without an order, promtool evaluates the groups in a random order, and an alert may read what was recorded one
        # interval ago.
        "group_eval_order": [group["name"] for group in groups],
        "tests": [
            {
                "interval": "10m" if days else "5s",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": "count by (alertname) (ALERTS{alertstate='firing'})",
                        "eval_time": at,
                        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected],
                    }
                ],
            }
        ],
    }
    path = tmp_path / "case.yaml"
    path.write_text(yaml.safe_dump(case))
    ran = subprocess.run([str(PROMTOOL), "test", "rules", str(path)], capture_output=True, text=True, timeout=60)
    return "" if ran.returncode == 0 else ran.stdout + ran.stderr


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    ran = subprocess.run([str(PROMTOOL), "check", "rules", str(RULES)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@needs_promtool
@pytest.mark.parametrize(("alert", "series", "at"), FIRES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_alert_fires_alone_for_its_condition(tmp_path: Path, alert: str, series: dict[str, str], at: str) -> None:
    lead = {} if "Leader" in alert or "penstock_leader" in series else {"penstock_leader": "1x80"}
    publishing = {'penstock_plan_publishes_total{outcome="unchanged"}': "0+3x80"} if lead else {}
    assert firing(tmp_path, {**lead, **publishing, **series}, at, [alert, *ALSO.get(alert, ())]) == ""


def test_every_alert_is_shown_to_fire_and_not_to_fire() -> None:
    assert {alert for alert, _, _ in FIRES} == {alert.name for alert in ALERTS}
    inputs = {name.partition("{")[0] for _, series, _ in FIRES for name in series}
    assert inputs <= {name.partition("{")[0] for name in WELL}


@needs_promtool
def test_a_healthy_fleet_fires_no_alert(tmp_path: Path) -> None:
    assert firing(tmp_path, WELL, "6m", []) == ""


KEPT = ObjectiveTally(Measure.FIRST_BYTE, 1.5, 0.99)
GPU = endpoint_sample(
    signals={Signal.KV_USED: 0.7, Signal.PREFIX_HITS: 0.0, Signal.PREFIX_QUERIES: 0.0},
    ejection=SimpleNamespace(is_ejected=True, state=EjectionState.EJECTED),
    reported=SimpleNamespace(
        gpus=GpuState(1, 0.9, 0.5, 60.0, True), skews={"m": SimpleNamespace(against=SkewAgainst.ENGINE)}
    ),
)


def agent(restless: RegionState = RegionState.SUSPECT) -> AgentMetrics:
    """The metrics of an agent with a sample of every kind."""
    metrics = AgentMetrics()
    metrics.use_names(["m"], ["eu-de", "eu-es"])
    metrics.usage.use_names(["acme"], {"m": 1.0})
    metrics.connections.pools = {"endpoints": UpstreamPool(lambda: ssl.create_default_context())}
    metrics.connections.listeners = {"traffic": ConnectionCounts(Limits(), lambda address: False)}
    metrics.on_demand.models = on_demand_sample("m")
    peer = SimpleNamespace(health=SimpleNamespace(state=restless), rtt_s=0.02)
    state = state_sample(
        GPU,
        endpoint_sample("gpu-2"),
        pools={"m": 0},
        peers=SimpleNamespace(regions={"eu-es": peer}),
        tally=SimpleNamespace(objectives={"m": {Measure.FIRST_BYTE: KEPT}}),
        budgets=budgets(),
    )
    metrics.use_state(state, {"m": 2})
    return metrics


def budgets() -> TenantBudgets:
    """The budgets of an agent, of which a tenant has used one."""
    found = TenantBudgets("de-1", 1, OpeningLeases(), lambda region: 1, time.time)
    sender = found.of(Tenant("acme", "open", own_budgets=(Budget(BudgetUnit.REQUESTS, 10.0),)))
    assert sender is not None
    estimate = WorkEstimate("acme", "m", Cost(), CostInputs(10), Work(0.0, 1.0), False)
    for _ in range(10):
        found.reserve(sender, Policy({}, {"m": Model("m")}, {}, ()), estimate, time.monotonic())
    return found


class OpeningLeases:
    """The leases of an agent whose leader grants it all of each budget."""

    def opening(self, key: BudgetKey, budget: Budget, now: float) -> BudgetLease:
        return BudgetLease(key, 0, budget.limit, budget.limit, full_rate(budget))

    def ended_s(self, now: float) -> float | None:
        return None

    def wake(self) -> None:
        pass


def work(metrics: AgentMetrics) -> None:
    """Count a little of every kind of work, as between two scrapes."""
    metrics.ended.count("m", "eu-de", RequestKind.HOME, Outcome.OK, 0.05, 2.0)
    metrics.ended.count("m", "eu-es", RequestKind.SPILLOVER, Outcome.OK, 0.08, 3.0)
    metrics.ended.count("m", "eu-es", RequestKind.SPILLOVER, Outcome.ENGINE_ERROR, None, 1.0)
    metrics.refused(Reason.SATURATED)
    metrics.retried(RetryReason.PEER_REFUSED)
    metrics.endpoints.ejected(AttemptOutcome.UNREACHABLE)
    traffic = metrics.endpoints.series.named["gpu-1"]
    traffic.ended(AttemptOutcome.SERVED, 2.0)
    traffic.ended(AttemptOutcome.UNREACHABLE, None)
    traffic.first_bytes.observe(0.2)
    traffic.ejections += 1
    connections = metrics.connections.pools["endpoints"].counts
    connections.opened, connections.reused = connections.opened + 1, connections.reused + 3
    metrics.connections.listeners["traffic"].add_connection("127.0.0.1", None)
    metrics.endpoints.became_suspect(StallReason.SILENT)
    metrics.stream_failed(ContinuationOutcome.RESUMED)
    metrics.waited("m", 0.2, QueueOutcome.DISPATCHED)
    metrics.decided(0.00003)
    metrics.result_cache.requests.labels(HIT).inc()
    request = WorkEstimate(
        "acme", "m", Cost(CostUnit.TOKEN, 0.0, 0.01), CostInputs(400), Work(0.0, 1.0), streaming=True
    )
    account = Account(Outcome.OK, "", 200, 0.0, 2.0)
    account.usage = Usage(100, 10, 64)
    metrics.usage.ended(request, account, 2.0, 1.0, 0.9)
    account.is_estimated = True
    metrics.usage.ended(request, account, 2.0, 1.0, 0.9)
    metrics.usage.overhead(request, 0.5, 1.0)
    while (gaps := metrics.streams.begin("m")) is None:
        pass
    gaps.wrote(1.0)
    gaps.wrote(1.001)
    GPU.readings[Signal.PREFIX_HITS].value = KEPT.answers
    GPU.readings[Signal.PREFIX_QUERIES].value = 2 * KEPT.answers
    KEPT.ended(Counts.SUCCESS, 0.05, 2.0)


def leader() -> ControlPlaneMetrics:
    """The metrics of a leader with a fleet of two regions."""
    metrics = ControlPlaneMetrics()
    metrics.set_leadership(7)
    metrics.show_regions(
        {"eu-de": RegionGauges(RegionState.HEALTHY, 0.4), "eu-es": RegionGauges(RegionState.FAILED, 9)}
    )
    metrics.show_pools({("eu-de", "m"): PoolGauges(64, 12)})
    metrics.show_demand({("eu-de", "m"): 5.5})
    metrics.show_skews([("eu-de", "m")])
    lacks = [Shortfall("m", ("eu-de+eu-es",), ("eu-de",), lost, 1.5, 6.0) for lost in (None, "eu-es")]
    metrics.show_shortfalls(lacks)
    arcs = (Arc("eu-de", 0.75, ArcReason.HOME), Arc("eu-es", 0.25, ArcReason.SPILLOVER))
    metrics.show_plan([RegionPlan("eu-de", 41, 7, "d", 0.0, (ClassPlan("m", "eu-de+eu-es", arcs, ()),))])
    metrics.set_policy("abc")
    metrics.show_overrides([("drain", "eu-es")])
    metrics.show_rollout(Phase.CANARY)
    metrics.show_model_rollouts({("chat", "v2", ModelPhase.STEP): 5.0})
    metrics.cost.show({("eu-de", "m"): 12.0}, {("eu-de", "eu-es"): 0.5})
    metrics.capacity.show([Recommendation("eu-de", "m", 4, 4, 6, Cause.DEMAND, None, 5.0, 9.0, 360.0)])
    metrics.capacity.show_takeover(Takeover(("eu-es",), 0.0, ready_after_s=90.0))
    metrics.internal.snapshot_age.set(0.5)
    return metrics


@asynccontextmanager
async def scraped(render: Callable[[], bytes]) -> AsyncIterator[str]:
    """Serve one page by HTTP on a free port; yields host:port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = render()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {CONTENT_TYPE}\r\ncontent-length: {len(body)}\r\n"
        head += "connection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def prometheus(directory: Path, agent_target: str, leader_target: str) -> AsyncIterator[httpx.AsyncClient]:
    """Run a Prometheus that scrapes both targets each second, with the committed rules; yields a client of its API."""
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {
                "job_name": "penstock-agent",
                "static_configs": [{"targets": [agent_target], "labels": {"site": "eu-de", "agent": "a1"}}],
            },
            {
                "job_name": "penstock-control-plane",
                "static_configs": [{"targets": [leader_target], "labels": {"site": "eu-de", "control_plane": "c1"}}],
            },
        ],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    process = await asyncio.create_subprocess_exec(
        str(PROMETHEUS),
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        "--web.listen-address=127.0.0.1:0",
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        address = await listening(process.stderr)
        drained = asyncio.create_task(process.stderr.read())
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60) as client:
            yield client
        process.terminate()
        await drained
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def listening(output: asyncio.StreamReader) -> str:
    """Wait until a Prometheus answers queries, and return its address. It listens earlier, and responds with 503."""
    said: list[str] = []
    address = ""
    async with asyncio.timeout(60):
        async for line in output:
            said.append(line.decode())
            if "Listening on" in said[-1] and "address=" in said[-1]:
                address = said[-1].split("address=")[1].split()[0]
            elif "Server is ready to receive web requests" in said[-1]:
                return address
    raise AssertionError("".join(said))


def panel_queries() -> dict[str, str]:
    """Every expression of the dashboards and their annotation as Grafana would send it, by panel and letter."""
    queries = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for board in BOARDS
        for panel in json.loads((GENERATED / f"{board.name}.json").read_text())["panels"]
        for target in panel.get("targets", ())
    }
    queries["annotation"] = ALERTS_FIRING
    chosen = {"$region": ".*", "$model": ".*", "$tenant": ".*", "$__range": "1m"}
    for name, value in chosen.items():
        queries = {where: expr.replace(name, value) for where, expr in queries.items()}
    return queries


@needs_prometheus
@pytest.mark.timeout(180)
async def test_every_panel_gets_an_answer_from_a_real_prometheus(tmp_path: Path) -> None:
    at_work, leading = agent(), leader()

    def page() -> bytes:
        work(at_work)
        return at_work.render()

    def control_page() -> bytes:
        leading.planned(0.004, ["m"])
        leading.published(PublishOutcome.PUBLISHED)
        leading.internal.store_called("keep_alive", 0.002, ok=True)
        with leading.internal.receiving_report():
            pass
        leading.internal.loop_delay.record(0.002)
        leading.reported("eu-de", ReportOutcome.ACCEPTED, {"eu-de"})
        return leading.render()

    async with (
        scraped(page) as agent_target,
        scraped(control_page) as leader_target,
        prometheus(tmp_path, agent_target, leader_target) as client,
    ):
        # A baseline needs a week before.
        unanswered = {where: expr for where, expr in panel_queries().items() if ":usual{" not in expr}
        with suppress(TimeoutError):
            async with asyncio.timeout(100):
                while unanswered:
                    for where, expr in list(unanswered.items()):
                        reply = (await client.get("/api/v1/query", params={"query": expr})).json()
                        assert reply["status"] == "success", f"{where}: {reply.get('error')}: {expr}"
                        if reply["data"]["result"]:
                            del unanswered[where]
                    await asyncio.sleep(0.5)
        assert not unanswered
        failed = await client.get("/api/v1/query", params={"query": "region:penstock_region_state:code"})
        codes = {series["metric"]["region"]: series["value"][1] for series in failed.json()["data"]["result"]}
        assert codes == {"eu-de": "1", "eu-es": str(STATE_CODES[RegionState.FAILED])}
