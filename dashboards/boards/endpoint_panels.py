"""Panels about single endpoints: what each serves, how fast, and how it ends."""

from __future__ import annotations

from dashboards.boards.panels import GREEN, ORANGE, Panel, Prose, Query, lines

_SITE = '{site=~"$region"}'
_FAILED = '{site=~"$region",outcome!~"served|inconclusive"}'


def _p95(histogram: str) -> str:
    """The 95th percentile of a histogram by endpoint, of the ten endpoints where it is highest."""
    rate = f"sum by (site, endpoint, le) (rate(penstock_agent_{histogram}_bucket{_SITE}[5m]))"
    return f"topk(10, histogram_quantile(0.95, {rate}))"


EACH_ENDPOINT: tuple[Panel, ...] = (
    lines(
        Prose(
            "How many requests does each endpoint serve?",
            "Complete responses per second of the ten endpoints with most; `other` is the sum of those without series"
            " of their own.",
            "One far below the others of its pool: see the panel about siblings, and whether it warms up.",
        ),
        [
            Query(
                "topk(10, sum by (site, endpoint)"
                ' (rate(penstock_agent_endpoint_requests_total{site=~"$region",outcome="served"}[5m])))',
                "{{site}} {{endpoint}}",
            )
        ],
        "reqps",
        span=8,
    ),
    lines(
        Prose(
            "Which endpoints fail requests?",
            "Failures per second of the ten endpoints with most, by outcome.",
            "One endpoint: its log. All of a version: roll it back. Failures that requests cause count nowhere.",
        ),
        [
            Query(
                "topk(10, sum by (site, endpoint, outcome)"
                f" (rate(penstock_agent_endpoint_requests_total{_FAILED}[5m])))",
                "{{site}} {{endpoint}} {{outcome}}",
            )
        ],
        "reqps",
        span=8,
    ),
    lines(
        Prose(
            "Which endpoints go out of service again and again?",
            "Times in ten minutes that an endpoint was ejected or became suspect, the ten with most.",
            "Drain it with `penstock endpoint drain` until it is repaired, so that it costs no trial requests.",
        ),
        [
            Query(
                "topk(10, sum by (site, endpoint, cause)"
                f" (increase(penstock_agent_endpoint_outages_total{_SITE}[10m])))",
                "{{site}} {{endpoint}} {{cause}}",
            )
        ],
        "short",
        span=8,
    ),
    lines(
        Prose(
            "Which endpoints begin late?",
            "95th percentile of the time from a request sent to the endpoint to the first byte of its stream.",
            "Beside siblings with the same load: a full KV cache, or a slow GPU. All: too few endpoints.",
        ),
        [Query(_p95("endpoint_ttft_seconds"), "{{site}} {{endpoint}}")],
        "s",
        span=6,
    ),
    lines(
        Prose(
            "How long do requests hold their slots?",
            "95th percentile of the time from a request sent to the end of its response, the ten highest.",
            "Beside siblings with the same load: long answers by chance, or a slow GPU.",
        ),
        [Query(_p95("endpoint_request_duration_seconds"), "{{site}} {{endpoint}}")],
        "s",
        span=6,
    ),
    lines(
        Prose(
            "Which endpoints keep requests waiting for a connection?",
            "95th percentile of the time until a new connection to the endpoint was open, the ten highest.",
            "Above a round trip: a server whose queue of connections is full, or lost packets. Requests on idle"
            " connections do not wait; see *How often are connections reused?* of the agents.",
        ),
        [Query(_p95("endpoint_connect_seconds"), "{{site}} {{endpoint}}")],
        "s",
        span=6,
    ),
    lines(
        Prose(
            "Which endpoints are slower than their siblings?",
            "Learned decode time relative to the median of the endpoints with the same models and accelerator.",
            "Above 1.2 for minutes: a throttled or degraded GPU. Runbook of PenstockEndpointSlow.",
        ),
        [
            Query(
                f"topk(10, avg by (site, endpoint) (penstock_agent_endpoint_slowdown_ratio{_SITE}))",
                "{{site}} {{endpoint}}",
            )
        ],
        "short",
        span=6,
        thresholds=[(None, GREEN), (1.2, ORANGE)],
    ),
    lines(
        Prose(
            "Which endpoints serve another version?",
            "Endpoints that report another revision than policy expects or their siblings serve, or another version of"
            " the engine; and regions that serve another revision than other regions.",
            "`penstock endpoints` has both versions. Runbook of PenstockVersionSkew.",
        ),
        [
            Query(
                'max by (site, endpoint, against) (penstock_agent_endpoint_version_skew{site=~"$region"})',
                "{{site}} {{endpoint}} against {{against}}",
            ),
            Query(
                'max by (region, model) (penstock_region_version_skew{region=~"$region"})',
                "{{region}} {{model}} against other regions",
            ),
        ],
        "short",
        span=24,
    ),
    lines(
        Prose(
            "How full is each endpoint?",
            "Requests on the endpoint as part of its slots, the ten fullest.",
            "Above 1: requests wait in the engine. One alone: it is slow, or the shared load is old.",
        ),
        [
            Query(
                f"topk(10, max by (site, endpoint) (penstock_agent_endpoint_in_flight{_SITE})"
                f" / (max by (site, endpoint) (penstock_agent_endpoint_slots{_SITE}) > 0))",
                "{{site}} {{endpoint}}",
            )
        ],
        "percentunit",
        span=12,
    ),
    lines(
        Prose(
            "How fast has each endpoint shown to be?",
            "Learned time of decode relative to the costs of policy, the ten slowest: 1 is as policy says, 2 half as"
            " fast.",
            "All far from 1: the costs of the model in policy are wrong; `make calibrate` measures them.",
        ),
        [
            Query(
                'topk(10, avg by (site, endpoint) (penstock_agent_endpoint_work_time_ratio{site=~"$region",'
                'work="decode"}))',
                "{{site}} {{endpoint}}",
            )
        ],
        "short",
        span=12,
    ),
)
