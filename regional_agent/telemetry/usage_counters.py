"""The Prometheus counters of the GPU time and tokens that requests use."""

from __future__ import annotations

from collections.abc import Callable

from regional_agent.telemetry.request_metrics import CounterFamily
from regional_agent.telemetry.usage_meter import UsageMeter, UsageSeries


def usage_counters(meter: UsageMeter) -> list[CounterFamily]:
    """Return the counters of usage by tenant and model."""
    return [
        _of_usage(
            "gpu_seconds",
            "GPU seconds of requests on endpoints of this region, by tenant and model: the time of a request,"
            " divided by the mean number of requests on its endpoint, times the GPUs of the endpoint by policy.",
            meter,
            lambda series: series.gpu_s,
        ),
        _of_usage(
            "input_tokens",
            "Prompt tokens of complete responses from endpoints of this region, cached ones included, as the"
            " responses state them.",
            meter,
            lambda series: series.input_tokens,
        ),
        _of_usage(
            "cached_input_tokens",
            "Prompt tokens of these responses that the engine's prefix cache had.",
            meter,
            lambda series: series.cached_input_tokens,
        ),
        _of_usage(
            "output_tokens",
            "Generated tokens of complete responses from endpoints of this region, as the responses state them.",
            meter,
            lambda series: series.output_tokens,
        ),
        _of_usage(
            "responses_without_usage",
            "Complete responses of models whose unit is the token that state no usage; their tokens are not"
            " counted. Streams state it where the client sets `stream_options.include_usage`.",
            meter,
            lambda series: series.without_usage,
        ),
    ]


def _of_usage(name: str, help_text: str, meter: UsageMeter, number: Callable[[UsageSeries], float]) -> CounterFamily:
    """Return a counter, by tenant and model, of one number of a usage meter."""
    return CounterFamily(
        f"penstock_agent_{name}",
        help_text,
        ("tenant", "model"),
        lambda: [((tenant, model), number(series)) for tenant, model, series in meter.series()],
    )
