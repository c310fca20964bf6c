"""One region as its clients meet it: latency part by part, refusals, failures."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import Prose, Query, Row, lines, states
from dashboards.boards.region_states import FROM_CLIENTS, STATE_WORDS, quantiles
from dashboards.recording_rules import (
    ATTAINED,
    PEER_STATE,
    REFUSALS,
    REQUEST_SECONDS,
    REQUESTS,
    TTFT,
    WAITS,
)

HERE = 'site=~"$region",model=~"$model"'

REGION = Board(
    "region",
    "region",
    "What clients of a region experience, and why.",
    (
        Row(
            "Latency",
            (
                quantiles(
                    Prose(
                        "How soon does a response begin?",
                        "Seconds from a client's request to the first byte of the response body, by model.",
                        "Compare with the two panels beside: the queue, or the engines?",
                    ),
                    TTFT,
                    by="model",
                    where=HERE,
                    span=8,
                ),
                quantiles(
                    Prose(
                        "How long do requests wait in the queue?",
                        "Seconds in the agent's admission queue, of requests that waited and were dispatched.",
                        "Seconds in bursts are normal. For long: the region is short of endpoints (`penstock"
                        " capacity`), or another region may not serve.",
                    ),
                    WAITS,
                    by="model",
                    where=HERE,
                    span=8,
                ),
                quantiles(
                    Prose(
                        "How long do requests take in all?",
                        "Seconds from a client's request to the end of the response, of those answered or timed out.",
                        "Up while the first byte is not: engines decode slowly, or answers became longer.",
                    ),
                    REQUEST_SECONDS,
                    by="model",
                    where=HERE,
                    span=8,
                ),
                quantiles(
                    Prose(
                        "How regular are streams?",
                        "Seconds between two writes of a streamed response, of one stream in 16.",
                        "p99 far above p50: engines interrupt decoding for prefill, or preempt. Lower their slots.",
                    ),
                    f"rate(penstock_agent_inter_token_latency_seconds_bucket{{{HERE}}}[1m])",
                    by="model",
                    span=8,
                ),
                quantiles(
                    Prose(
                        "How fast do engines generate?",
                        "Seconds per generated token after the first, of streams that state their usage.",
                        "Up with utilisation is batching. Up without: clocks of the GPU, or another process on it.",
                    ),
                    f"rate(penstock_agent_time_per_output_token_seconds_bucket{{{HERE}}}[1m])",
                    by="model",
                    span=8,
                ),
                lines(
                    Prose(
                        "Are service objectives met?",
                        "Share of requests within the objective, by model and measure: the first byte of streams, the"
                        " total time of other responses; dashed the target.",
                        "Below the dashed line: runbook of PenstockObjectiveMissed.",
                    ),
                    [
                        Query(f"{ATTAINED.record}{{{HERE}}}", "{{site}} {{model}} {{measure}}"),
                        Query(
                            'max by (model, measure) (penstock_agent_slo_target_ratio{model=~"$model"})',
                            "{{model}} {{measure}} target",
                            dashed=True,
                        ),
                    ],
                    "percentunit",
                    span=8,
                ),
            ),
        ),
        Row(
            "Refusals and failures",
            (
                lines(
                    Prose(
                        "Why are requests refused?",
                        "Requests per second that agents refused, by reason (docs/errors.md).",
                        "`saturated`, `none_ready`: capacity. `residency_*`, `location_unknown`,"
                        " `no_permitted_region`: policy or GeoIP. `invalid_api_key`, `model_not_found`: clients.",
                    ),
                    [Query(f'sum by (reason) ({REFUSALS.record}{{site=~"$region"}})', "{{reason}}")],
                    "reqps",
                    stacked=True,
                ),
                lines(
                    Prose(
                        "How do requests end?",
                        "Requests per second by outcome, as origins count them.",
                        "`engine_error`: logs of the engines. `timed_out`, `stalled`: engines hang or queue."
                        " `client_left`, `expired` rising with latency: clients give up.",
                    ),
                    [Query(f"sum by (outcome) ({REQUESTS.record}{{{FROM_CLIENTS}}})", "{{outcome}}")],
                    "reqps",
                    stacked=True,
                ),
            ),
        ),
        Row(
            "Neighbours",
            (
                states(
                    Prose(
                        "Which regions does it reach?",
                        "The state that each region's agents assign to each other region, by their own probes.",
                        "One observer alone: the path between the two is at fault, not the region.",
                    ),
                    Query(f'{PEER_STATE.record}{{site=~"$region"}}', "{{site}} → {{region}}"),
                    STATE_WORDS,
                ),
                lines(
                    Prose(
                        "How far are the other regions?",
                        "Round trip in seconds by probes: observer to observed.",
                        "A step on one pair: its route changed. On all pairs of a region: its uplink or agent.",
                    ),
                    [
                        Query(
                            'max by (site, region) (penstock_agent_peer_rtt_seconds{site=~"$region"})',
                            "{{site}} → {{region}}",
                        )
                    ],
                    "s",
                ),
            ),
        ),
    ),
)
