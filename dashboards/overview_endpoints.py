"""The overview's bottom row: single endpoints, what they are trusted with, and what waits for them."""

from __future__ import annotations

from dashboards.panels import GREEN, ORANGE, RED, Prose, Query, Row, lines, rows_of

KV_USED = 'penstock_agent_engine_signal{site=~"$region",signal="kv_used"}'

ENDPOINTS = Row(
    "Endpoints",
    (
        lines(
            Prose(
                "Busiest endpoints",
                "The ten endpoints with the most requests on them.",
                "One far above the rest of its pool: it is slow, or the shared load is old.",
            ),
            [
                Query(
                    'topk(10, max by (site, endpoint) (penstock_agent_endpoint_in_flight{site=~"$region"}))',
                    "{{site}} {{endpoint}}",
                )
            ],
            "short",
            span=12,
        ),
        lines(
            Prose(
                "Waiting for room",
                "Requests that wait in each region's agents because no endpoint has room, by model.",
                "Now and then is how bursts are taken. All the time: the region is short of endpoints, and what "
                "waits too long is refused as `saturated`.",
            ),
            [
                Query(
                    'sum by (site, model) (penstock_agent_requests_queued{site=~"$region",model=~"$model"})',
                    "{{site}} {{model}}",
                )
            ],
            "short",
            span=12,
        ),
        lines(
            Prose(
                "Ejections by reason",
                "Endpoints a second that were taken out because requests failed there, by the last failure, or because "
                "requests made no progress there (suspect), by the evidence.",
                "One reason at one site: look at that engine's log. Everywhere at once: a model version or a network.",
            ),
            [
                Query(
                    'sum by (site, reason) (rate(penstock_agent_endpoint_ejections_total{site=~"$region"}[1m])) > 0',
                    "{{site}} {{reason}}",
                ),
                Query(
                    'sum by (site, reason) (rate(penstock_agent_endpoint_suspicions_total{site=~"$region"}[1m])) > 0',
                    "{{site}} suspect: {{reason}}",
                ),
            ],
            "short",
            span=8,
        ),
        rows_of(
            Prose(
                "Ejected now",
                "Endpoints that are kept out, or on trial, because requests failed or made no progress there.",
                "They come back by themselves once a trial goes well. One that never does: take it out and repair it.",
            ),
            'max by (site, endpoint) (penstock_agent_endpoint_ejected{site=~"$region"}) > 0',
            {"site": "region", "endpoint": "endpoint"},
            "ejected",
            "none",
            span=8,
        ),
        lines(
            Prose(
                "Warming up",
                "How much of its size each endpoint that has just come up is used for, until it is warm.",
                "Stuck below 1, or falling again and again: the endpoint restarts; look at its log.",
            ),
            [
                Query(
                    'min by (site, endpoint) (penstock_agent_endpoint_warmup_weight{site=~"$region"}) < 1',
                    "{{site}} {{endpoint}}",
                )
            ],
            "percentunit",
            span=8,
        ),
        lines(
            Prose(
                "KV cache in use",
                "The ten endpoints whose engines say that most of their KV cache is taken.",
                "Near 1: the engine holds requests back or preempts them. Fewer slots or more engines.",
            ),
            [
                Query(
                    f"topk(10, max by (site, endpoint) ({KV_USED}))",
                    "{{site}} {{endpoint}}",
                )
            ],
            "percentunit",
            span=12,
            thresholds=[(None, GREEN), (0.85, ORANGE), (0.95, RED)],
        ),
        lines(
            Prose(
                "Age of engine signals",
                "Seconds since each endpoint's engine was last heard of how full it is, the ten oldest.",
                "Growing: its metrics page does not answer. Dispatch goes on without; old signals count for less.",
            ),
            [
                Query(
                    'topk(10, max by (site, endpoint) (penstock_agent_engine_signal_age_seconds{site=~"$region"}))',
                    "{{site}} {{endpoint}}",
                )
            ],
            "s",
            span=12,
        ),
    ),
)

ROWS = (ENDPOINTS,)
