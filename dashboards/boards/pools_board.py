"""Pools and endpoints: room, health, engines, and how many endpoints there should be."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.endpoint_panels import EACH_ENDPOINT
from dashboards.boards.panels import GREEN, ORANGE, RED, Prose, Query, Row, lines
from dashboards.recording_rules import IN_FLIGHT, SHORTFALL, SLOTS

POOL = 'region=~"$region",model=~"$model"'
KV_USED = 'penstock_agent_engine_signal{site=~"$region",signal="kv_used"}'
PREFIX = "penstock_agent_engine_prefix"

POOLS = Board(
    "pools",
    "pools and endpoints",
    "Whether there is room, which endpoints are away, and how many there should be.",
    (
        Row(
            "Capacity",
            (
                lines(
                    Prose(
                        "Is there room?",
                        "Requests on the endpoints of each pool, and dashed the requests that they can run at once.",
                        "At the dashed line: full. Slots fall: endpoints are away; see the panels below.",
                    ),
                    [
                        Query(f"{IN_FLIGHT.record}{{{POOL}}}", "{{region}} {{model}}"),
                        Query(f"{SLOTS.record}{{{POOL}}}", "{{region}} {{model}} slots", dashed=True),
                    ],
                    "short",
                ),
                lines(
                    Prose(
                        "How many endpoints should there be?",
                        "Endpoints of each pool, and dashed the recommended number: forecast demand, and the reserve"
                        " for the loss of a region.",
                        "Dashed above for longer than the cold start: the autoscaler does not follow. `penstock"
                        " capacity` has the cause, and the endpoints to drain.",
                    ),
                    [
                        Query(f"max by (region, model) (penstock_endpoints{{{POOL}}})", "{{region}} {{model}}"),
                        Query(
                            f"max by (region, model) (penstock_desired_endpoints{{{POOL}}})",
                            "{{region}} {{model}} desired",
                            dashed=True,
                        ),
                    ],
                    "short",
                ),
                lines(
                    Prose(
                        "Which demand is expected?",
                        "Highest forecast, until an endpoint that is ordered now serves, for which the region is the"
                        " nearest permitted one.",
                        "Far from the demand of the fleet's dashboard: the daily season is not learned yet, or demand"
                        " changed its shape.",
                    ),
                    [
                        Query(
                            f"max by (region, model) (penstock_forecast_requests_per_second{{{POOL}}})",
                            "{{region}} {{model}}",
                        )
                    ],
                    "reqps",
                ),
                lines(
                    Prose(
                        "How many slots are missing?",
                        "Slots that a model lacks, by region where they could be added: now, and dashed after the worst"
                        " loss of one region. No line: none.",
                        "Add that many in any one region shown for the model, the current shortfall first.",
                    ),
                    [
                        Query(f'{SHORTFALL.record}{{{POOL},scenario="current"}}', "{{region}} {{model}}"),
                        Query(
                            f'{SHORTFALL.record}{{{POOL},scenario="region_loss"}}',
                            "{{region}} {{model}} after a loss",
                            dashed=True,
                        ),
                    ],
                    "short",
                ),
            ),
        ),
        Row(
            "Endpoints",
            (
                lines(
                    Prose(
                        "Which endpoints are away?",
                        "The ten endpoints with the least readiness: 1 accepts requests, 0 does not.",
                        "`penstock endpoints --region` has the state: `down`, `ejected`, `suspect`, `unloaded` or"
                        " `draining`.",
                    ),
                    [
                        Query(
                            'bottomk(10, min by (site, endpoint) (penstock_agent_endpoint_ready{site=~"$region"}))',
                            "{{site}} {{endpoint}}",
                        )
                    ],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "Why are endpoints ejected?",
                        "Ejections per second by the last failure, and endpoints that became suspect by the evidence.",
                        "One reason in one region: the log of that engine. Everywhere at once: a version of a model, or"
                        " a network. Runbook of PenstockEndpointEjections.",
                    ),
                    [
                        Query(
                            'sum by (reason) (rate(penstock_agent_endpoint_ejections_total{site=~"$region"}[5m]))',
                            "{{reason}}",
                        ),
                        Query(
                            'sum by (reason) (rate(penstock_agent_endpoint_suspicions_total{site=~"$region"}[5m]))',
                            "suspect: {{reason}}",
                        ),
                    ],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "Which endpoints are kept out?",
                        "The ten endpoints that outlier ejection limits now: 1 is ejected, suspect or on trial.",
                        "They return after a successful trial. One that never does: repair or remove it.",
                    ),
                    [
                        Query(
                            'topk(10, max by (site, endpoint) (penstock_agent_endpoint_ejected{site=~"$region"}))',
                            "{{site}} {{endpoint}}",
                        )
                    ],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "Which endpoints are busiest?",
                        "The ten endpoints with the most requests.",
                        "One far above the rest of its pool: it is slow, or the shared load is old.",
                    ),
                    [
                        Query(
                            'topk(10, max by (site, endpoint) (penstock_agent_endpoint_in_flight{site=~"$region"}))',
                            "{{site}} {{endpoint}}",
                        )
                    ],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "Which endpoints warm up?",
                        "The ten endpoints with the least share of their capacity in use; 1 is warm.",
                        "Below 1 again and again: the endpoint restarts; see its log.",
                    ),
                    [
                        Query(
                            "bottomk(10, min by (site, endpoint)"
                            ' (penstock_agent_endpoint_warmup_weight{site=~"$region"}))',
                            "{{site}} {{endpoint}}",
                        )
                    ],
                    "percentunit",
                    span=8,
                ),
                lines(
                    Prose(
                        "How many requests wait for a slot?",
                        "Requests in the admission queues of each region's agents, by model.",
                        "Always above 0: the region is short of endpoints. What waits too long is refused as"
                        " `saturated`.",
                    ),
                    [
                        Query(
                            'sum by (site, model) (penstock_agent_requests_queued{site=~"$region",model=~"$model"})',
                            "{{site}} {{model}}",
                        )
                    ],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "How long do priorities wait?",
                        "Mean time in the admission queues by priority, of requests that left them: high is above 0,"
                        " low below; batch uses only idle slots.",
                        "Low waits for minutes: raise `reserve_percent` of the model, or add endpoints.",
                    ),
                    [
                        Query(
                            "sum by (priority)"
                            ' (rate(penstock_agent_queue_priority_wait_seconds_total{site=~"$region"}[5m]))'
                            " / sum by (priority)"
                            ' (rate(penstock_agent_queue_priority_requests_total{site=~"$region"}[5m]) > 0)',
                            "{{priority}}",
                        )
                    ],
                    "s",
                    span=12,
                ),
                lines(
                    Prose(
                        "Who displaces whom?",
                        "Requests per second that full queues gave up for new ones, by priority.",
                        "Within one priority, the tenant that has most in the queue gives up requests. Any: raise"
                        " `max_length`, or add endpoints.",
                    ),
                    [
                        Query(
                            "sum by (priority, by)"
                            ' (rate(penstock_agent_queue_displaced_requests_total{site=~"$region"}[5m]))',
                            "{{priority}} by {{by}}",
                        )
                    ],
                    "reqps",
                    span=12,
                ),
            ),
        ),
        Row("Each endpoint", EACH_ENDPOINT),
        Row(
            "Engines",
            (
                lines(
                    Prose(
                        "How full are KV caches?",
                        "The ten endpoints whose engines report the largest share of their KV cache in use.",
                        "Near 1: the engine delays or preempts requests. Fewer slots, or more engines.",
                    ),
                    [Query(f"topk(10, max by (site, endpoint) ({KV_USED}))", "{{site}} {{endpoint}}")],
                    "percentunit",
                    span=8,
                    thresholds=[(None, GREEN), (0.85, ORANGE), (0.95, RED)],
                ),
                lines(
                    Prose(
                        "How often does the prefix cache hit?",
                        "Share of the looked-up prompt tokens that the engines' prefix caches had, by region.",
                        "A fall: prompts changed at their start, sessions lost their endpoints (ejections, restarts),"
                        " or caches are too small.",
                    ),
                    [
                        Query(
                            f'sum by (site) (rate({PREFIX}_hit_tokens_total{{site=~"$region"}}[5m]))'
                            f' / sum by (site) (rate({PREFIX}_query_tokens_total{{site=~"$region"}}[5m]))',
                            "{{site}}",
                        )
                    ],
                    "percentunit",
                    span=8,
                ),
                lines(
                    Prose(
                        "How old are the engines' signals?",
                        "Seconds since the engine of each endpoint reported its load, the ten oldest.",
                        "Growing: its metrics page does not answer. Dispatch continues; old signals lose weight.",
                    ),
                    [
                        Query(
                            "topk(10, max by (site, endpoint)"
                            ' (penstock_agent_engine_signal_age_seconds{site=~"$region"}))',
                            "{{site}} {{endpoint}}",
                        )
                    ],
                    "s",
                    span=8,
                ),
            ),
        ),
    ),
)
