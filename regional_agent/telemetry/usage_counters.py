"""The Prometheus counters of the GPU time and tokens that requests use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Final

from penstock.meters.usage_meter import UsageMeter, UsageSeries
from regional_agent.telemetry.metric_primitives import ComputedFamily, counter_family

_COUNTERS: Final[dict[str, tuple[str, Callable[[UsageSeries], float]]]] = {
    "gpu_seconds": (
        "GPU seconds of requests on endpoints of this region, by tenant and model: the time of a request,"
        " divided by the mean number of requests on its endpoint, times the GPUs of the endpoint by policy.",
        attrgetter("gpu_s"),
    ),
    "overhead_gpu_seconds": (
        "GPU seconds, counted like gpu_seconds, that no tenant is charged for: attempts that were retried,"
        " and responses that failed by a fault of the fleet.",
        attrgetter("overhead_gpu_s"),
    ),
    "input_tokens": (
        "Prompt tokens of requests that endpoints of this region served, cached ones included, as the engines"
        " report them; estimated where an engine reports none.",
        attrgetter("input_tokens"),
    ),
    "cached_input_tokens": (
        "Prompt tokens of these requests that the engine's prefix cache had.",
        attrgetter("cached_input_tokens"),
    ),
    "output_tokens": (
        "Generated tokens of requests that endpoints of this region served, as the engines report them; where an"
        " engine reports none, and where the client left, the number that the client received.",
        attrgetter("output_tokens"),
    ),
    "estimated_usage": (
        "Requests whose tokens are estimated, at least in part: the engine reported no usage, or the response did"
        " not reach its end.",
        attrgetter("estimated"),
    ),
}
"""Help text and number of each counter, by name."""


def usage_counters(meter: UsageMeter) -> list[ComputedFamily]:
    """Return the counters of usage by tenant and model."""
    return [
        counter_family(f"penstock_agent_{name}", help_text, ("tenant", "model"), partial(_values, meter, number))
        for name, (help_text, number) in _COUNTERS.items()
    ]


def _values(meter: UsageMeter, number: Callable[[UsageSeries], float]) -> list[tuple[tuple[str, ...], float]]:
    return [((tenant, model), number(series)) for tenant, model, series in meter.series()]
