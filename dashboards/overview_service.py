"""The overview's middle: what clients feel, what they are refused, and whether what steers it all is alive."""

from __future__ import annotations

from dashboards.overview_traffic import FROM_CLIENTS
from dashboards.panels import GREEN, GREY, RED, Panel, Prose, Query, Row, lines, rows_of, states
from dashboards.recording_rules import ATTAINED, REFUSALS, REQUEST_SECONDS, REQUESTS, TTFT, WAITS
from dashboards.rules import Recording

YES_NO = {0: ("no", GREY), 1: ("yes", GREEN)}
UP_DOWN = {0: ("down", RED), 1: ("up", GREEN)}


def _quantiles(prose: Prose, buckets: Recording) -> Panel:
    """Median and, dashed, 99th percentile by origin region."""
    series = f'sum by (site, le) ({buckets.record}{{site=~"$region",model=~"$model"}})'
    return lines(
        prose,
        [
            Query(f"histogram_quantile(0.5, {series})", "{{site}} p50"),
            Query(f"histogram_quantile(0.99, {series})", "{{site}} p99", dashed=True),
        ],
        "s",
        span=8,
    )


LATENCY = Row(
    "What clients feel",
    (
        _quantiles(
            Prose(
                "Time to first token",
                "Seconds from a client's request to the first byte of the answer, by the region it came in at; "
                "dashed the slowest in a hundred. Spillover and its round trip are in it.",
                "p99 up and p50 not: some endpoints are slow or full. Both up: the region is saturated, or served "
                "from afar; compare with who served whom.",
            ),
            TTFT,
        ),
        _quantiles(
            Prose(
                "End to end",
                "Seconds from a client's request to the end of the answer, for those answered in full or timed out.",
                "Up while time to first token is not: engines decode slowly, so batches are large or caches full. "
                "Compare with answer lengths before blaming anything.",
            ),
            REQUEST_SECONDS,
        ),
        _quantiles(
            Prose(
                "Time in the queue",
                "Seconds that requests waited in an agent until there was room for them, of those that had to wait "
                "and were served; how many wait is in the row on endpoints.",
                "p99 of some seconds in bursts is what the queue is for. For long: the region is short of endpoints, "
                "and `saturated` refusals follow; add some, or let another region in.",
            ),
            WAITS,
        ),
        lines(
            Prose(
                "Service objectives attained",
                "The part of requests, by model and the region they came in at, whose answer began in the time that "
                "the model's service objective allows; dashed the part that should.",
                "Below the dashed line: see time to first token and in the queue there, and requests that did not end "
                "well. PenstockObjectiveMissed has the steps.",
            ),
            [
                Query(f'{ATTAINED.record}{{site=~"$region",model=~"$model"}}', "{{site}} {{model}}"),
                Query(
                    'max by (model) (penstock_agent_slo_target_ratio{model=~"$model"})', "{{model}} wanted", dashed=True
                ),
            ],
            "percentunit",
            span=24,
        ),
    ),
)

REFUSALS_AND_ERRORS = Row(
    "Refusals and errors",
    (
        lines(
            Prose(
                "Refusals by reason",
                "Requests a second that Penstock refused, by reason.",
                "`saturated`, `none_ready`: capacity. `residency_*`, `location_unknown`, `no_permitted_region`: "
                "policy or GeoIP. `invalid_api_key`, `model_not_found`: clients. `bad_route_context`: keys or clocks "
                "of agents differ.",
            ),
            [Query(f'sum by (reason) ({REFUSALS.record}{{site=~"$region"}}) > 0', "{{reason}}")],
            "reqps",
            stacked=True,
            span=8,
        ),
        lines(
            Prose(
                "Requests that did not end well",
                "Requests a second by how they ended, where that was not well.",
                "`engine_error`: see the engines' logs. `timeout`: engines hang or queue. `cancelled` rising with "
                "latency: clients lose patience.",
            ),
            [
                Query(
                    f'sum by (outcome) ({REQUESTS.record}{{{FROM_CLIENTS},outcome!="ok"}}) > 0',
                    "{{outcome}}",
                )
            ],
            "reqps",
            stacked=True,
            span=8,
        ),
        lines(
            Prose(
                "Residency refusals at server, by region",
                "Requests that a region was sent and, by their residency class, must not be. Always 0.",
                "Anything else: follow the runbook of PenstockForwardedResidencyRefused at once.",
            ),
            [
                Query(
                    'sum by (site) (increase(penstock_agent_forwarded_residency_refusals_total{site=~"$region"}[5m]))',
                    "{{site}}",
                )
            ],
            "short",
            span=8,
            thresholds=[(None, GREEN), (0.001, RED)],
        ),
    ),
)

CONTROL_PLANE = Row(
    "Control plane",
    (
        states(
            Prose(
                "Leadership",
                "Which control plane leads, over time.",
                "A change now and then is a restart. Many: etcd is slow or leases expire; look at etcd's disk latency.",
            ),
            Query("max by (instance) (penstock_leader)", "{{instance}}"),
            YES_NO,
            span=8,
        ),
        lines(
            Prose(
                "Plan generation and fencing epoch",
                "Generation of the plan in force at agents, newest and oldest, and dashed the leader's epoch.",
                "Oldest far behind newest: some agents do not get plans; config age names them. The epoch steps up "
                "with each new leader and never down.",
            ),
            [
                Query("max(penstock_agent_plan_generation)", "newest at agents"),
                Query("min(penstock_agent_plan_generation)", "oldest at agents"),
                Query("max(penstock_fencing_epoch)", "leader's epoch", dashed=True),
            ],
            "none",
            span=8,
        ),
        lines(
            Prose(
                "Publishing",
                "Attempts to publish a plan a second, by how they ended.",
                "Only `published` and `unchanged` are well; the runbook of PenstockPlanNotPublished has the others.",
            ),
            [Query("sum by (outcome) (rate(penstock_plan_publishes_total[1m]))", "{{outcome}}")],
            "ops",
            stacked=True,
            span=8,
        ),
        lines(
            Prose(
                "Report age",
                "Seconds since any agent of a region reported to the leader. About 1.",
                "Growing for one region: its agents or their way to the leader. For all: the leader takes no reports.",
            ),
            [Query('max by (region) (penstock_report_age_seconds{region=~"$region"})', "{{region}}")],
            "s",
            span=8,
            thresholds=[(None, GREEN), (10, RED)],
        ),
        lines(
            Prose(
                "Reports",
                "Reports a second that control planes were sent, by what became of them.",
                "`bad_signature`: a certificate of another fleet, expired or revoked, or an attack. "
                "`stale`: two agents share a name. "
                "`not_leader` for seconds after a change of leader is how agents find the new one.",
            ),
            [Query("sum by (outcome) (rate(penstock_reports_total[1m]))", "{{outcome}}")],
            "reqps",
            stacked=True,
            span=8,
        ),
        lines(
            Prose(
                "Planning time",
                "Seconds to make a plan: median and, dashed, the slowest in a hundred.",
                "Near the planning interval of 1-2 s: too many classes or a slow machine; give the leader more CPU.",
            ),
            [
                Query(
                    "histogram_quantile(0.5, sum by (le) (rate(penstock_planning_duration_seconds_bucket[1m])))", "p50"
                ),
                Query(
                    "histogram_quantile(0.99, sum by (le) (rate(penstock_planning_duration_seconds_bucket[1m])))",
                    "p99",
                    dashed=True,
                ),
            ],
            "s",
            span=8,
        ),
    ),
)

AGENTS = Row(
    "Agents",
    (
        lines(
            Prose(
                "Config age",
                "Seconds since etcd confirmed the policy and plan each agent goes by.",
                "Growing for all: etcd is away; serving goes on. For one site: its way to etcd. See PenstockConfigOld.",
            ),
            [
                Query(
                    'max by (site, agent) (penstock_agent_config_age_seconds{site=~"$region"})',
                    "{{site}} {{agent}}",
                )
            ],
            "s",
            span=8,
            thresholds=[(None, GREEN), (120, RED)],
        ),
        states(
            Prose(
                "Shared load (Redis)",
                "Whether each agent reaches its region's shared load.",
                "Down: agents choose by their own view, with longer tails. Restart that region's Redis.",
            ),
            Query('min by (site, agent) (penstock_agent_shared_load_up{site=~"$region"})', "{{site}} {{agent}}"),
            UP_DOWN,
            span=8,
        ),
        lines(
            Prose(
                "Shared load age",
                "Seconds since each agent read the shared load. Past a tenth of a mean service time it misleads, and "
                "agents choose between two at random by it.",
                "Growing while Redis is up: Redis or the agent's event loop is overloaded.",
            ),
            [
                Query(
                    'max by (site, agent) (penstock_agent_shared_load_age_seconds{site=~"$region"})',
                    "{{site}} {{agent}}",
                )
            ],
            "s",
            span=8,
        ),
        lines(
            Prose(
                "Carried by agents",
                "Requests each region's agents carry now, their own and those forwarded to them.",
                "Not falling to 0 when traffic stops is a leak: keep /status output and report a defect.",
            ),
            [Query('sum by (site) (penstock_agent_requests_in_flight{site=~"$region",model=~"$model"})', "{{site}}")],
            "short",
            span=8,
        ),
        lines(
            Prose(
                "Round trip between regions",
                "Seconds there and back by probes: observer to observed.",
                "A step up on one pair: its route has changed. On all pairs of one region: its uplink or agent.",
            ),
            [
                Query(
                    'max by (site, region) (penstock_agent_peer_rtt_seconds{site=~"$region"})',
                    "{{site}} → {{region}}",
                )
            ],
            "s",
            span=8,
        ),
        rows_of(
            Prose(
                "Policy in force",
                "The digest of the policy each control plane goes by. All the same, but for seconds after a change.",
                "They differ for longer: one cannot read the bundle or rejects it; its log names file and field.",
            ),
            "max by (instance, digest) (penstock_policy_info)",
            {"instance": "control plane", "digest": "policy digest"},
            "in force",
            "none",
            span=8,
        ),
    ),
)

ROWS = (LATENCY, REFUSALS_AND_ERRORS, CONTROL_PLANE, AGENTS)
