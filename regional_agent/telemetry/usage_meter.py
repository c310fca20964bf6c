"""Tokens, GPU time and time per output token of the requests that this region's endpoints served.

Each request adds to plain numbers. The usage that a response states is read from at most one response per READ_EVERY_S,
and is counted again for each preceding unread response of the same tenant and model. While responses end at least
READ_EVERY_S apart (at most 500 per second), every response is read and the counters are exact.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from penstock.policy.policy import CostUnit
from penstock.routing.placement import WorkEstimate
from penstock.routing.usage import Usage, read_usage
from regional_agent.telemetry.request_metrics import DurationHistogram, DurationHistograms

OTHER_TENANTS: Final = "other"
"""The label of tenants without separate series."""

READ_EVERY_S: Final = 0.002
"""Minimum time (s) between two responses whose usage is read."""

_TOKEN: Final = CostUnit.TOKEN
"""A module constant, since in Python 3.11 access to an enum member through its class is a function call."""


class UsageSeries:
    """The usage of the requests of one tenant for one model."""

    __slots__ = (
        "cached_input_tokens",
        "gpu_s",
        "gpus",
        "input_tokens",
        "output_tokens",
        "per_token",
        "unread",
        "without_usage",
    )

    def __init__(self, gpus: float, per_token: DurationHistogram) -> None:
        """`gpus` are the GPUs of one endpoint; `per_token` is the histogram of the model."""
        self.gpus = gpus
        self.per_token = per_token
        self.gpu_s = 0.0
        self.input_tokens = self.cached_input_tokens = self.output_tokens = 0
        self.without_usage = 0
        """Complete responses that state no usage."""
        self.unread = 0
        """Complete responses since the last response whose usage was read."""


class UsageMeter:
    """Usage by tenant and model. The policy bounds the number of series."""

    def __init__(self, per_token: DurationHistograms) -> None:
        """`per_token` are the histograms of the time per output token, by model."""
        self._per_token = per_token
        self._gpus: Mapping[str, float] = {}
        self._named: dict[str, dict[str, UsageSeries]] = {}
        self._others: dict[str, UsageSeries] = {}
        self._read_at = 0.0

    def use_names(self, tenants: Collection[str], gpus: Mapping[str, float]) -> None:
        """Use the names of a newly accepted policy, and drop the series of removed names.

        Args:
            tenants: tenants with separate series; all other tenants share one series per model.
            gpus: GPUs of one endpoint, by model.
        """
        self._gpus = gpus
        by_model = {tenant: self._named.get(tenant, {}) for tenant in tenants}
        self._named = {tenant: self._kept(series) for tenant, series in by_model.items()}
        self._others = self._kept(self._others)

    def ended(self, estimate: WorkEstimate, held_s: float, streams: float) -> UsageSeries | None:
        """Count the GPU time of a request that ended on an endpoint; returns its series, None for a removed model.

        Args:
            held_s: time (s) for which the request held its slot.
            streams: mean number of requests that shared the GPUs of the endpoint in that time, this request included.
        """
        by_model = self._named.get(estimate.tenant, self._others)
        series = by_model.get(estimate.model)
        if series is None:
            gpus = self._gpus.get(estimate.model)
            if gpus is None:
                return None
            series = by_model[estimate.model] = UsageSeries(gpus, self._per_token.of(estimate.model))
        series.gpu_s += series.gpus * held_s / streams
        return series

    def completed(
        self,
        series: UsageSeries,
        estimate: WorkEstimate,
        usage_parts: tuple[bytes, ...],
        streamed_s: float | None,
        now: float,
    ) -> Usage | None:
        """Count the tokens of a complete response; returns its usage, None if the usage is missing or was not read.

        Args:
            usage_parts: the parts of the response that may state its usage.
            streamed_s: time (s) from the first byte to the end of the response; None if it is not streamed.
            now: monotonic, in seconds.
        """
        if estimate.cost.unit is not _TOKEN:
            return None
        series.unread += 1
        if now < self._read_at:
            return None
        self._read_at = now + READ_EVERY_S
        stands_for, series.unread = series.unread, 0
        usage = read_usage(b"".join(usage_parts), estimate.usage_fields)
        if usage is None:
            series.without_usage += stands_for
            return None
        series.input_tokens += stands_for * usage.prompt_tokens
        series.cached_input_tokens += stands_for * usage.cached_tokens
        series.output_tokens += stands_for * usage.answer_tokens
        if streamed_s is not None and usage.answer_tokens > 1:
            series.per_token.observe(streamed_s / (usage.answer_tokens - 1))
        return usage

    def series(self) -> list[tuple[str, str, UsageSeries]]:
        """Return every series with its tenant and model."""
        by_tenant = [*self._named.items(), (OTHER_TENANTS, self._others)]
        return [(tenant, model, series) for tenant, by_model in by_tenant for model, series in by_model.items()]

    def _kept(self, by_model: dict[str, UsageSeries]) -> dict[str, UsageSeries]:
        kept = {}
        for model, series in by_model.items():
            if model in self._gpus:
                series.gpus = self._gpus[model]
                kept[model] = series
        return kept
