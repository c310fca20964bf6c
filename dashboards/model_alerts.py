"""Alerts about the models that endpoints serve: their versions, on demand, and in a rollout."""

from __future__ import annotations

from dashboards.rules import Alert, Severity
from penstock.rollout.model_rollout import ModelPhase

TICKET = Severity.TICKET

_PAIRS = "sum by (site, model) (increase(penstock_agent_quality_pairs_total[15m]))"
_FAILED = 'sum by (site, model) (increase(penstock_agent_quality_pairs_total{result="failed"}[15m]))'

MODELS = (
    Alert(
        name="PenstockVersionSkew",
        expr="max by (site, endpoint, against) (penstock_agent_endpoint_version_skew) > 0",
        for_s=1800,
        severity=TICKET,
        summary="Endpoint {{ $labels.endpoint }} in {{ $labels.site }} serves another version ({{ $labels.against }})",
        impact="Clients receive answers of different models under one name, or the endpoint is refused by policy.",
    ),
    Alert(
        name="PenstockRegionVersionSkew",
        expr="max by (region, model) (penstock_region_version_skew) > 0",
        for_s=7200,
        severity=TICKET,
        summary="{{ $labels.region }} serves another revision of {{ $labels.model }} than other regions",
        impact="Clients receive answers of different models under one name, by the region that serves them.",
    ),
    Alert(
        name="PenstockWakeFails",
        expr='sum by (site, model, action) (increase(penstock_agent_wake_attempts_total{result="failed"}[15m])) >= 3',
        for_s=0,
        severity=TICKET,
        summary="Endpoints of {{ $labels.model }} in {{ $labels.site }} do not {{ $labels.action }}",
        impact="wake: requests for the model are refused, or leave the region. sleep: none; the GPU stays in use.",
    ),
    Alert(
        name="PenstockModelWithoutRoom",
        expr="max by (site, model) (increase(penstock_agent_model_without_room_seconds_total[15m])) > 30",
        for_s=0,
        severity=TICKET,
        summary="Requests for {{ $labels.model }} in {{ $labels.site }} need an endpoint, and no memory has room",
        impact="They wait for the endpoints that are awake; without one, they leave the region or are refused.",
    ),
    Alert(
        name="PenstockQualityHookFails",
        expr=f"{_FAILED} >= 3 and {_FAILED} > 0.1 * {_PAIRS}",
        for_s=0,
        severity=TICKET,
        summary="The quality hook of {{ $labels.model }} in {{ $labels.site }} does not score pairs of answers",
        impact="Clients notice nothing. The rollout of the version waits for scores, and does not go on.",
    ),
    Alert(
        name="PenstockModelRolloutWaits",
        expr="max by (name, to, phase) (penstock_model_rollout_wait_seconds) > 3600",
        for_s=0,
        severity=TICKET,
        summary="The rollout of {{ $labels.to }} ({{ $labels.name }}) waits in {{ $labels.phase }} for"
        " {{ $value | humanizeDuration }}",
        impact="None: the new version keeps its share, and does not receive more.",
    ),
    Alert(
        name="PenstockModelRolledBack",
        expr=f'count by (name, to) (penstock_model_rollout_wait_seconds{{phase="{ModelPhase.ROLLED_BACK}"}}) > 0',
        for_s=0,
        severity=TICKET,
        summary="The rollout of {{ $labels.to }} ({{ $labels.name }}) was rolled back",
        impact="Clients have the percentages of the policy again. Those of the new version had worse answers before.",
    ),
)
