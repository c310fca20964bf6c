"""Kinds of policy documents: what the leader reads from other systems to plan capacity."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from penstock.policy.fields import Label, ModelRef, PolicyStruct, RegionRef, bounds, length, pattern

PlainUrl = Annotated[
    str,
    length(1, 512),
    pattern(
        r"^(https://[^\s#@]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?/[^\s#@]*)$",
        "write an https URL without credentials, such as https://forecast.example/demand.json",
    ),
]


class DemandSignal(PolicyStruct, frozen=True):
    """A URL with expected changes of demand that measurements do not show yet, such as a calendar of broadcasts.

    The leader fetches it. The response is JSON: `{"points": [{"at": 1796115600, "factor": 1.5}, ...]}` with Unix times
    (s) in ascending order, and demand as a multiple of the usual; in between it is interpolated, outside it is 1. The
    forecast rises by the ratio of the factor at the forecast time to the factor of now, and is never lowered.
    """

    name: Label
    """Unique name."""
    url: PlainUrl
    """URL of the signal, as the control planes reach it. Redirects are not followed; a response has at most 256 KiB and
    1,000 points, and 3 s."""
    max_factor: Annotated[float, bounds(ge=1, le=100)] = 3.0
    """Maximum factor by which the signal raises a forecast. Of several signals, the largest counts."""
    refresh_s: Annotated[float, bounds(ge=5, le=86_400)] = 300.0
    """Interval (s) at which the signal is fetched. The last valid response counts while its points last."""
    models: Annotated[tuple[ModelRef, ...], Meta(extra_json_schema={"maxItems": 1000})] = ()
    """Models whose demand the signal describes. Default: all."""
    origins: Annotated[tuple[RegionRef, ...], Meta(extra_json_schema={"maxItems": 1000})] = ()
    """Regions whose clients' demand the signal describes. Default: all."""
