"""When operators are notified. Each alert has a runbook, `docs/runbooks/<name>.md`.

Serving does not need the control plane (static stability), so an outage of the control plane is a ticket, unless it
also removes the means to react to the next failure.
"""

from __future__ import annotations

from dashboards.model_alerts import MODELS
from dashboards.recording_rules import (
    AVAILABILITY_TARGET,
    BURN_1H,
    BURN_5M,
    BURN_6H,
    BURN_30M,
    DEMAND_GROWTH,
    FAILING_1H,
    FAILING_5M,
    FAILING_6H,
    FAILING_30M,
    HOURLY_DEMAND,
    REGION_STATE,
    REQUESTS,
    SHORTFALL,
    STATE_CODES,
    USUAL_DEMAND,
    USUAL_GROWTH,
    UTILISATION,
)
from dashboards.rules import Alert, Severity
from penstock.health.region_health import RegionState
from penstock.rollout.policy_rollout import Phase

PAGE, TICKET = Severity.PAGE, Severity.TICKET

FAST, SLOW = 14.4, 6.0
"""Burn rates (https://sre.google/workbook/alerting-on-slos/): at the first, a month's budget lasts two days; at the
second, five days."""

UNUSUAL = 2.0
"""Ratio of demand to that of the same hour of the last weeks, or its inverse, above which it is unusual."""

NOTABLE_PER_S = 0.1
"""Demand (requests/s) below which no ratio is notable: it is the chance of single requests."""

_TO_USUAL = f"{HOURLY_DEMAND.record} / ({USUAL_DEMAND.record} > 0)"


def _over(rate: float) -> str:
    """The share of failed requests at this burn rate of the budget."""
    return f"{rate * (1.0 - AVAILABILITY_TARGET):.4g}"


SERVICE = (
    Alert(
        name="PenstockAvailabilityLow",
        expr=f"{FAILING_1H.record} > {_over(FAST)} and {FAILING_5M.record} > {_over(FAST)}",
        for_s=60,
        severity=PAGE,
        summary="{{ $value | humanizePercentage }} of the requests of {{ $labels.site }} fail",
        impact="Clients receive errors or refusals; at this rate a month's budget is spent in two days.",
    ),
    Alert(
        name="PenstockAvailabilityEroding",
        expr=f"{FAILING_6H.record} > {_over(SLOW)} and {FAILING_30M.record} > {_over(SLOW)}",
        for_s=900,
        severity=TICKET,
        summary="For hours {{ $value | humanizePercentage }} of the requests of {{ $labels.site }} fail",
        impact="Some clients receive errors or refusals; at this rate a month's budget is spent in five days.",
    ),
    Alert(
        name="PenstockObjectiveMissed",
        expr=f"{BURN_1H.record} > {FAST} and {BURN_5M.record} > {FAST}",
        for_s=60,
        severity=PAGE,
        summary="Responses of {{ $labels.model }} miss the objective ({{ $labels.measure }}) {{ $value | humanize }}"
        " times as often as allowed",
        impact="Clients wait or are refused; at this rate a month's budget is spent in two days.",
    ),
    Alert(
        name="PenstockObjectiveMissedSlowly",
        expr=f"{BURN_6H.record} > {SLOW:g} and {BURN_30M.record} > {SLOW:g}",
        for_s=900,
        severity=TICKET,
        summary="For hours responses of {{ $labels.model }} miss the objective ({{ $labels.measure }})"
        " {{ $value | humanize }} times as often as allowed",
        impact="Some clients wait or are refused; at this rate a month's budget is spent in five days.",
    ),
    Alert(
        name="PenstockShedding",
        expr=f'sum by (site) ({REQUESTS.record}{{kind!="forwarded",outcome="refused"}})'
        f' / sum by (site) ({REQUESTS.record}{{kind!="forwarded"}}) > 0.01',
        for_s=60,
        severity=PAGE,
        summary="{{ $labels.site }} receives requests and refuses {{ $value | humanizePercentage }} of them",
        impact="Clients receive 429 or 503 with Retry-After.",
    ),
    Alert(
        name="PenstockForwardedResidencyRefused",
        expr="sum by (site) (increase(penstock_agent_forwarded_residency_refusals_total[5m])) > 0",
        for_s=0,
        severity=PAGE,
        summary="{{ $labels.site }} received requests whose residency class forbids it",
        impact="The requests were refused there and not served, but their contents crossed a border they must not.",
    ),
)

CAPACITY = (
    Alert(
        name="PenstockSaturated",
        expr=f"{UTILISATION.record} > 0.95",
        for_s=120,
        severity=TICKET,
        summary="{{ $labels.model }} in {{ $labels.region }} uses {{ $value | humanizePercentage }} of its slots",
        impact="Requests wait in engines, or spill to regions farther away.",
    ),
    Alert(
        name="PenstockQueueSaturated",
        expr='sum by (site, model) (rate(penstock_agent_queue_wait_seconds_count{outcome="abandoned"}[5m]))'
        " / sum by (site, model) (rate(penstock_agent_queue_wait_seconds_count[5m])) > 0.1"
        " and sum by (site, model) (rate(penstock_agent_queue_wait_seconds_count[5m])) > 0.1",
        for_s=120,
        severity=PAGE,
        summary="{{ $value | humanizePercentage }} of the queued requests for {{ $labels.model }} in {{ $labels.site }}"
        " leave the queue unserved",
        impact="Clients wait for seconds and are then refused, or give up.",
    ),
    Alert(
        name="PenstockCapacityBelowRecommended",
        expr="max by (region, model) (penstock_desired_endpoints) > max by (region, model) (penstock_endpoints)",
        for_s=1800,
        severity=TICKET,
        summary="{{ $labels.region }} should have {{ $value }} endpoints of {{ $labels.model }} and has fewer",
        impact="None yet, or spillover: expected demand or the loss of a region does not fit.",
    ),
    Alert(
        name="PenstockDemandUnusual",
        expr=f"({_TO_USUAL} > {UNUSUAL} or {_TO_USUAL} < {1.0 / UNUSUAL})"
        f" and ({HOURLY_DEMAND.record} > {NOTABLE_PER_S} or {USUAL_DEMAND.record} > {NOTABLE_PER_S})",
        for_s=1800,
        severity=TICKET,
        summary="Demand for {{ $labels.model }} in {{ $labels.origin }} is {{ $value | humanize }} times"
        " that of this hour of the week",
        impact="None yet. More: capacity may lack soon. Less: clients may be unable to reach the region.",
    ),
    Alert(
        name="PenstockDemandSurge",
        expr=f"{DEMAND_GROWTH.record} > {UNUSUAL} unless {DEMAND_GROWTH.record} < 1.5 * {USUAL_GROWTH.record}",
        for_s=0,
        severity=TICKET,
        summary="Demand for {{ $labels.model }} in {{ $labels.origin }} is {{ $value | humanize }} times"
        " that of ten minutes ago",
        impact="None yet, or spillover: demand rises faster than endpoints can be added.",
    ),
    Alert(
        name="PenstockRegionLossUncovered",
        expr=f'sum by (model) ({SHORTFALL.record}{{scenario="region_loss"}}) > 0',
        for_s=1800,
        severity=TICKET,
        summary="The loss of a region would leave requests for {{ $labels.model }} without a slot",
        impact="None yet; after the loss of one region some requests are refused.",
    ),
    Alert(
        name="PenstockEndpointEjections",
        expr="sum by (site) (increase(penstock_agent_endpoint_ejections_total[10m])) > 5",
        for_s=0,
        severity=TICKET,
        summary="{{ $labels.site }} ejected endpoints {{ $value | humanize }} times in ten minutes",
        impact="Requests are retried elsewhere, and the slots are missing while endpoints are out.",
    ),
    Alert(
        name="PenstockEndpointSuspect",
        expr="avg_over_time(max by (site, endpoint) (penstock_agent_endpoint_suspect)[10m:15s]) > 0.3",
        for_s=120,
        severity=TICKET,
        summary="Endpoint {{ $labels.endpoint }} in {{ $labels.site }} accepts requests and makes no progress",
        impact="Each trial request there waits for seconds before another endpoint serves it. The slots are missing.",
    ),
    Alert(
        name="PenstockEndpointSlow",
        expr="avg by (site, endpoint) (penstock_agent_endpoint_slowdown_ratio) > 1.2",
        for_s=600,
        severity=TICKET,
        summary="Endpoint {{ $labels.endpoint }} in {{ $labels.site }} takes {{ $value | humanize }} times as long"
        " for a token as its siblings",
        impact="Its requests take longer. It receives fewer requests, so the pool serves less than its slots.",
    ),
    Alert(
        name="PenstockEndpointDown",
        expr="max by (site, endpoint) (penstock_agent_endpoint_ready) == 0"
        " unless max by (site, endpoint) (penstock_agent_endpoint_draining) == 1"
        " unless max by (site, endpoint) (penstock_agent_endpoint_asleep) == 1",
        for_s=1800,
        severity=TICKET,
        summary="Endpoint {{ $labels.endpoint }} in {{ $labels.site }} has accepted no request for half an hour",
        impact="None while the others of the pool have room: its slots are missing.",
    ),
)

_CERTIFICATE_DAYS_LEFT = (
    "(min by (instance, certificate) (penstock_agent_certificate_expiry_timestamp_seconds"
    " or penstock_certificate_expiry_timestamp_seconds) - time()) / 86400"
)

REGIONS = (
    Alert(
        name="PenstockRegionFailed",
        expr=f"{REGION_STATE.record} == {STATE_CODES[RegionState.FAILED]}",
        for_s=10,
        severity=PAGE,
        summary="Region {{ $labels.region }} has failed",
        impact="Its traffic goes to the other permitted regions; classes that only it may serve are refused.",
    ),
    Alert(
        name="PenstockNameWithoutRegion",
        expr="max by (name) (penstock_agent_dns_live_regions) == 0",
        for_s=5,
        severity=PAGE,
        summary="No name server has a live region for the DNS name {{ $labels.name }}",
        impact="Clients that resolve the name get its last resort, or no address once cached answers have expired.",
    ),
    Alert(
        name="PenstockRegionDegraded",
        expr=f"{REGION_STATE.record} == {STATE_CODES[RegionState.DEGRADED]}",
        for_s=300,
        severity=TICKET,
        summary="Fewer than half of the endpoints of a model are ready in region {{ $labels.region }}",
        impact="The plan moves what the ready endpoints cannot serve to other regions; the reserve shrinks.",
    ),
    Alert(
        name="PenstockReportsOld",
        expr="max by (region) (penstock_report_age_seconds) > 10",
        for_s=30,
        severity=TICKET,
        summary="No agent of {{ $labels.region }} has reported for {{ $value | humanizeDuration }}",
        impact="None directly; the plan uses old numbers of this region, with less and less weight.",
    ),
    Alert(
        name="PenstockAgentDown",
        expr='up{job="penstock-agent"} == 0',
        for_s=60,
        severity=TICKET,
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} does not answer",
        impact="The region's other agents serve; if it was the only one, the region has failed.",
    ),
    Alert(
        name="PenstockConfigOld",
        expr="max by (site, agent) (penstock_agent_config_age_seconds) > 120",
        for_s=60,
        severity=TICKET,
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} has had no contact with etcd for"
        " {{ $value | humanizeDuration }}",
        impact="None yet: it serves by its last policy and plan, and receives no new policy, drain or plan.",
    ),
    Alert(
        name="PenstockDirectorySilent",
        expr="max by (site, agent, directory) (penstock_agent_directory_age_seconds) > 600",
        for_s=60,
        severity=TICKET,
        summary="{{ $labels.directory }} has not answered agent {{ $labels.agent }} in {{ $labels.site }} for"
        " {{ $value | humanizeDuration }}",
        impact="None yet: the agent serves by the last answer, and learns of no endpoint that is added or removed.",
    ),
    Alert(
        name="PenstockFileRejected",
        expr="max by (site, agent, file) (penstock_agent_file_rejected) == 1",
        for_s=60,
        severity=TICKET,
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} rejects a changed file of kind {{ $labels.file }}",
        impact="None yet: the last valid content stays in force, and no later change takes effect.",
    ),
    Alert(
        name="PenstockCertificateExpiresNow",
        expr=f"{_CERTIFICATE_DAYS_LEFT} < 3",
        for_s=300,
        severity=PAGE,
        summary="Certificate {{ $labels.certificate }} of {{ $labels.instance }} expires in {{ $value | humanize }} d",
        impact="None yet. An expired identity excludes the process: no reports, no forwarded requests.",
    ),
    Alert(
        name="PenstockCertificateExpiresSoon",
        expr=f"{_CERTIFICATE_DAYS_LEFT} < 14 >= 3",
        for_s=300,
        severity=TICKET,
        summary="Certificate {{ $labels.certificate }} of {{ $labels.instance }} expires in {{ $value | humanize }} d",
        impact="None yet: whatever renews certificates has not done so.",
    ),
    Alert(
        name="PenstockSharedLoadDown",
        expr="min by (site, agent) (penstock_agent_shared_load_up) == 0",
        for_s=60,
        severity=TICKET,
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} cannot reach the shared load (Redis)",
        impact="Agents of the site select endpoints by their own counts alone: somewhat longer tails under load.",
    ),
    Alert(
        name="PenstockAccessLogDropped",
        expr="sum by (site, agent) (increase(penstock_agent_access_log_lines_dropped_total[10m])) > 0",
        for_s=0,
        severity=TICKET,
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} dropped {{ $value | humanize }} access log lines",
        impact="Requests are served; their records are missing.",
    ),
    Alert(
        name="PenstockDemandNotReported",
        expr='sum by (site, agent) (increase(penstock_agent_demand_without_row_total{counted="lost"}[10m])) > 0',
        for_s=0,
        severity=TICKET,
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} does not report {{ $value | humanize }} requests"
        " as demand",
        impact="Requests are served; plans and recommended endpoints do not reckon with those of some models.",
    ),
    Alert(
        name="PenstockLedgerRecordsLost",
        expr="sum by (site, agent) (increase(penstock_agent_ledger_records_lost_total[10m])) > 0",
        for_s=0,
        severity=PAGE,
        summary="Agent {{ $labels.agent }} in {{ $labels.site }} lost {{ $value | humanize }} records of the ledger",
        impact="Requests are served and will be missing in bills: the disk or ledger_spool_bytes is full.",
    ),
    Alert(
        name="PenstockLedgerNotStored",
        expr="max by (site, agent) (penstock_agent_ledger_oldest_segment_age_seconds) > 1800",
        for_s=60,
        severity=TICKET,
        summary="Segments of agent {{ $labels.agent }} in {{ $labels.site }} wait {{ $value | humanizeDuration }}",
        impact="None yet: the usage store cannot be reached, or no store covers the region; the spool fills up.",
    ),
)


def _stalls(prefix: str) -> str:
    """Number of times in 5 minutes that the event loop of a process ran a timer more than a second late."""
    count, bucket = f"{prefix}_event_loop_delay_seconds_count", f'{prefix}_event_loop_delay_seconds_bucket{{le="1.0"}}'
    return f"sum by (instance) (increase({count}[5m])) - sum by (instance) (increase({bucket}[5m]))"


CONTROL_PLANE = (
    Alert(
        name="PenstockNoLeader",
        expr="(sum(penstock_leader) or vector(0)) == 0",
        for_s=30,
        severity=PAGE,
        summary="No control plane leads",
        impact="None yet: agents serve by the last plan. No new plan is made when demand or regions change.",
    ),
    Alert(
        name="PenstockSeveralLeaders",
        expr="sum(penstock_leader) > 1",
        for_s=30,
        severity=TICKET,
        summary="{{ $value }} control planes report that they lead",
        impact="None: the fencing epoch rejects every write of the older one.",
    ),
    Alert(
        name="PenstockLeaderFlapping",
        expr="sum(increase(penstock_leader_changes_total[30m])) > 4",
        for_s=0,
        severity=TICKET,
        summary="The leader changed {{ $value | humanize }} times in half an hour",
        impact="Plans pause for seconds at each change; agents serve by the last one.",
    ),
    Alert(
        name="PenstockPlanNotPublished",
        expr='sum(increase(penstock_plan_publishes_total{outcome=~"published|unchanged"}[2m])) == 0'
        " and sum(penstock_leader) > 0",
        for_s=60,
        severity=PAGE,
        summary="There is a leader, but no plan was published or confirmed for minutes",
        impact="None yet: agents serve by the last plan, and fail over by the tables in it.",
    ),
    Alert(
        name="PenstockPlannerFallback",
        expr="sum by (model) (increase(penstock_planner_fallbacks_total[10m])) > 5",
        for_s=0,
        severity=TICKET,
        summary="The waterfall planner replaced the solver for {{ $labels.model }}",
        impact="Plans keep no reserve and ignore prices; requests are served.",
    ),
    Alert(
        name="PenstockPlannerSlow",
        expr="histogram_quantile(0.9, sum by (le) (rate(penstock_planning_duration_seconds_bucket[5m]))) > 0.4",
        for_s=300,
        severity=TICKET,
        summary="One plan in ten takes {{ $value | humanizeDuration }}; one is due every half a second",
        impact="Plans follow demand later; failover does not depend on them.",
    ),
    Alert(
        name="PenstockPlanRefused",
        expr="sum by (region) (penstock_agents_rejecting_config) > 0",
        for_s=30,
        severity=TICKET,
        summary="{{ $value }} agents of {{ $labels.region }} reject the newest policy or plan",
        impact="They serve by an older policy or plan: drains, failovers and new rules do not reach them.",
    ),
    Alert(
        name="PenstockRolloutHeld",
        expr=f'sum by (phase) (penstock_rollout_phase{{phase=~"{Phase.SHADOW_HELD}|{Phase.CANARY_HELD}"}}) > 0',
        for_s=60,
        severity=TICKET,
        summary="A change of policy waits for an operator: {{ $labels.phase }}",
        impact="None: the previous policy stays in force, and the change has no effect.",
    ),
    Alert(
        name="PenstockPolicyRolledBack",
        expr=f'sum(penstock_rollout_phase{{phase="{Phase.ROLLED_BACK}"}}) > 0',
        for_s=0,
        severity=TICKET,
        summary="A change of policy was rolled back",
        impact="The policy from before it is in force in every region; the newest revision of the source is not.",
    ),
    Alert(
        name="PenstockStoreSlow",
        expr="histogram_quantile(0.9, sum by (instance, le)"
        ' (rate(penstock_store_call_duration_seconds_bucket{operation=~"keep_alive|commit"}[5m]))) > 0.5',
        for_s=120,
        severity=TICKET,
        summary="One write of {{ $labels.instance }} to etcd in ten takes {{ $value | humanizeDuration }}",
        impact="None yet; slower still, leases expire and the leader changes.",
    ),
    Alert(
        name="PenstockEventLoopStalled",
        expr=f"({_stalls('penstock')} or {_stalls('penstock_agent')}) > 2",
        for_s=0,
        severity=TICKET,
        summary="{{ $labels.instance }} stopped for more than a second, {{ $value | humanize }} times in 5 minutes",
        impact="Meanwhile it answered nothing: an agent no clients and no probes, a control plane no reports.",
    ),
    Alert(
        name="PenstockReportIntakeSlow",
        expr="histogram_quantile(0.9, sum by (instance, le) (rate(penstock_report_intake_duration_seconds_bucket[5m])))"
        " > 0.5",
        for_s=120,
        severity=TICKET,
        summary="One report in ten takes {{ $value | humanizeDuration }} to be received by {{ $labels.instance }}",
        impact="Plans use older numbers; agents that time out report to another control plane.",
    ),
)

ALERTS = (*SERVICE, *CAPACITY, *MODELS, *REGIONS, *CONTROL_PLANE)
