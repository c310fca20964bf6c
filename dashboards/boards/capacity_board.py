"""Capacity: how busy each endpoint and its GPUs are, what is missing or too much, and what it costs."""

from __future__ import annotations

from dashboards.boards.board import Board
from dashboards.boards.panels import BLUE, GREEN, GREY, ORANGE, RED, Prose, Query, Row, heat, lines
from dashboards.recording_rules import HOURLY_DEMAND, TOKENS_PER_GPU_SECOND, TTFT_TAIL, USE_VARIATION, USUAL_DEMAND

_SITE = '{site=~"$region"}'
_POOL = '{region=~"$region",model=~"$model"}'
_ORIGIN = '{origin=~"$region",model=~"$model"}'
_SERVED = '{site=~"$region",model=~"$model"}'
_GPU = "penstock_agent_endpoint_gpu"
_USE = [(None, GREY), (0.05, BLUE), (0.3, GREEN), (0.8, ORANGE), (0.95, RED)]

CAPACITY = Board(
    "capacity",
    "capacity",
    "How busy each endpoint and its GPUs are, how many endpoints are missing or too many, and what they cost.",
    (
        Row(
            "Heat map of endpoints",
            (
                heat(
                    Prose(
                        "How busy is each endpoint?",
                        "Requests on each endpoint, as a share of those that it runs at once.",
                        "One red row among green ones: slow, or work is bound to it. All red: capacity is missing.",
                    ),
                    Query(
                        f"max by (site, endpoint) (penstock_agent_endpoint_in_flight{_SITE})"
                        f" / max by (site, endpoint) (penstock_agent_endpoint_slots{_SITE})",
                        "{{site}} {{endpoint}}",
                    ),
                    _USE,
                ),
                heat(
                    Prose(
                        "How busy are the GPUs of each endpoint?",
                        "Share of the time in which the GPUs ran a kernel, where `gpu_metrics_port` is set.",
                        "Busy slots and idle GPUs: the engine waits for something else, or its slots are too few.",
                    ),
                    Query(
                        f"max by (site, endpoint) (penstock_agent_endpoint_gpu_utilisation_ratio{_SITE})",
                        "{{site}} {{endpoint}}",
                    ),
                    _USE,
                ),
                lines(
                    Prose(
                        "Which GPUs are hot?",
                        "The ten endpoints with the hottest GPU (degrees Celsius); dashed 1 where a GPU is throttled.",
                        "Throttled: runbook of PenstockEndpointSlow. Hotter than its siblings: its fans, its rack.",
                    ),
                    [
                        Query(
                            f"topk(10, max by (site, endpoint) ({_GPU}_temperature_celsius{_SITE}))",
                            "{{site}} {{endpoint}}",
                        ),
                        Query(
                            f"max by (site, endpoint) (penstock_agent_endpoint_gpu_throttled{_SITE}) == 1",
                            "{{site}} {{endpoint}} throttled",
                            dashed=True,
                        ),
                    ],
                    "short",
                ),
                lines(
                    Prose(
                        "Whose GPU memory is full?",
                        "The ten endpoints with the largest share of GPU memory in use.",
                        "Near 1 at once after the start: what the engine reserves. Growing for hours: a leak.",
                    ),
                    [
                        Query(
                            f"topk(10, max by (site, endpoint) (penstock_agent_endpoint_gpu_memory_used_ratio{_SITE}))",
                            "{{site}} {{endpoint}}",
                        )
                    ],
                    "percentunit",
                ),
            ),
        ),
        Row(
            "Evenness and yield",
            (
                lines(
                    Prose(
                        "How evenly are the endpoints of a pool used?",
                        "Coefficient of variation of the used share of slots among ready endpoints; 0 is even.",
                        "Above 0.5 under load: sessions or cached prefixes bind work to few endpoints, some are slower"
                        " (they get less), or the shared load is down.",
                    ),
                    [Query(f"{USE_VARIATION.record}{_SERVED}", "{{site}} {{model}}")],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "How much longer do the slowest responses take to begin?",
                        "99th percentile of the time to the first byte, divided by its median.",
                        "Growing: queues, uneven endpoints (panel beside), or a mix of short and long prompts.",
                    ),
                    [Query(f"{TTFT_TAIL.record}{_SERVED}", "{{site}} {{model}}")],
                    "short",
                    span=8,
                ),
                lines(
                    Prose(
                        "How many tokens does a GPU second yield?",
                        "Generated tokens per second in which a GPU was busy with requests.",
                        "Falling: smaller batches, longer prompts, or throttled GPUs; see the heat maps.",
                    ),
                    [Query(f"{TOKENS_PER_GPU_SECOND.record}{_SERVED}", "{{site}} {{model}}")],
                    "short",
                    span=8,
                ),
            ),
        ),
        Row(
            "Models on demand and standby regions",
            (
                lines(
                    Prose(
                        "How long does a model take to load?",
                        "Seconds from a request for a model of which every endpoint sleeps until one is ready: the"
                        " longest of the last five, or `cold_start_s` of the policy.",
                        "Growing: weights come over the network. Longer than clients wait: keep one endpoint awake.",
                    ),
                    [Query(f"max by (site, model) (penstock_agent_cold_start_seconds{_SERVED})", "{{site}} {{model}}")],
                    "s",
                ),
                lines(
                    Prose(
                        "How often do endpoints wake and sleep?",
                        "Attempts of 10 minutes to wake an endpoint or to let one sleep, by result.",
                        "Failed: runbook of PenstockWakeFails. Wake and sleep in turn: raise `idle_s`.",
                    ),
                    [
                        Query(
                            "sum by (site, model, action, result)"
                            f" (increase(penstock_agent_wake_attempts_total{_SERVED}[10m]))",
                            "{{site}} {{model}} {{action}} {{result}}",
                        )
                    ],
                    "short",
                ),
                lines(
                    Prose(
                        "Which models lose their memory to others?",
                        "Evictions of 10 minutes by the model that left; dashed the seconds in which a model needed"
                        " memory and none had room.",
                        "Again and again: memory for one more model is missing. Runbook of PenstockModelWithoutRoom.",
                    ),
                    [
                        Query(
                            f"sum by (site, model) (increase(penstock_agent_evictions_total{_SERVED}[10m]))",
                            "{{site}} {{model}} evicted",
                        ),
                        Query(
                            "max by (site, model)"
                            f" (increase(penstock_agent_model_without_room_seconds_total{_SERVED}[10m]))",
                            "{{site}} {{model}} without room (s)",
                            dashed=True,
                        ),
                    ],
                    "short",
                ),
                lines(
                    Prose(
                        "How long do standby regions take to take over?",
                        "Seconds of the current or last takeover until the endpoints that the loss asks for were ready,"
                        " and until the lost regions were back; dashed 1 while a takeover lasts.",
                        "No `ready` for longer than a cold start: the autoscaler does not follow; `penstock capacity`.",
                    ),
                    [
                        Query("max by (stage) (penstock_standby_takeover_seconds)", "{{stage}}"),
                        Query("max(penstock_standby_takeover)", "in takeover", dashed=True),
                    ],
                    "s",
                ),
            ),
        ),
        Row(
            "Order and return",
            (
                lines(
                    Prose(
                        "How many endpoints are missing or too many?",
                        "Recommended endpoints less existing ones; dead endpoints do not exist.",
                        "Above 0 for longer than the cold start: the autoscaler does not follow. Below 0: `penstock"
                        " capacity` names which to drain.",
                    ),
                    [
                        Query(
                            f"max by (region, model) (penstock_desired_endpoints{_POOL})"
                            f" - max by (region, model) (penstock_endpoints{_POOL})",
                            "{{region}} {{model}}",
                        )
                    ],
                    "short",
                ),
                lines(
                    Prose(
                        "Is the demand usual for this hour of the week?",
                        "Mean demand (requests/s) of an hour; dashed the mean of the same hour of the last four weeks.",
                        "Twice or half of it for half an hour: runbook of PenstockDemandUnusual.",
                    ),
                    [
                        Query(f"{HOURLY_DEMAND.record}{_ORIGIN}", "{{origin}} {{model}}"),
                        Query(f"{USUAL_DEMAND.record}{_ORIGIN}", "{{origin}} {{model}} usual", dashed=True),
                    ],
                    "reqps",
                ),
                lines(
                    Prose(
                        "What do the endpoints cost?",
                        "Price of the GPUs of all endpoints, busy or not, per hour at the price of now; dashed what"
                        " burst endpoints cost in the last 5 minutes, per hour.",
                        "Steps at whole hours are `price_hours`; spot capacity has prices of its own. Burst for hours:"
                        " own endpoints are cheaper. `penstock usage --cost` has what served nothing.",
                    ),
                    [
                        Query(f"sum by (region, model) (penstock_gpu_hourly_cost{_POOL})", "{{region}} {{model}}"),
                        Query(
                            f"3600 * sum by (site, model) (rate(penstock_agent_burst_cost_total{_SITE}[5m]))",
                            "{{site}} {{model}} burst",
                            dashed=True,
                        ),
                    ],
                    "short",
                ),
            ),
        ),
    ),
)
