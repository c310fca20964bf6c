"""The Prometheus counters of the GPU time and tokens that requests use."""

from __future__ import annotations

from collections.abc import Callable

from regional_agent.telemetry.metric_primitives import ComputedFamily, counter_family
from regional_agent.telemetry.usage_meter import UsageMeter, UsageSeries


def usage_counters(meter: UsageMeter) -> list[ComputedFamily]:
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
            "overhead_gpu_seconds",
            "GPU seconds, counted like gpu_seconds, that no tenant is charged for: attempts that were retried,"
            " and responses that failed by a fault of the fleet.",
            meter,
            lambda series: series.overhead_gpu_s,
        ),
        _of_usage(
            "input_tokens",
            "Prompt tokens of requests that endpoints of this region served, cached ones included, as the engines"
            " report them; estimated where an engine reports none.",
            meter,
            lambda series: series.input_tokens,
        ),
        _of_usage(
            "cached_input_tokens",
            "Prompt tokens of these requests that the engine's prefix cache had.",
            meter,
            lambda series: series.cached_input_tokens,
        ),
        _of_usage(
            "output_tokens",
            "Generated tokens of requests that endpoints of this region served, as the engines report them; where an"
            " engine reports none, and where the client left, the number that the client received.",
            meter,
            lambda series: series.output_tokens,
        ),
        _of_usage(
            "estimated_usage",
            "Requests whose tokens are estimated, at least in part: the engine reported no usage, or the response did"
            " not reach its end.",
            meter,
            lambda series: series.estimated,
        ),
    ]


def _of_usage(name: str, help_text: str, meter: UsageMeter, number: Callable[[UsageSeries], float]) -> ComputedFamily:
    """Return a counter, by tenant and model, of one number of a usage meter."""
    return counter_family(
        f"penstock_agent_{name}",
        help_text,
        ("tenant", "model"),
        lambda: [((tenant, model), number(series)) for tenant, model, series in meter.series()],
    )
