"""Tokens, GPU time and time per output token of the requests that this region's endpoints served, by their accounts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.pools.placement import WorkEstimate
from regional_agent.telemetry.metric_primitives import DurationHistogram, DurationHistograms

_OK: Final = Outcome.OK
"""A module constant, since in Python 3.11 access to an enum member through its class is a function call."""

OTHER_TENANTS: Final = "other"
"""The label of tenants without separate series."""


class UsageSeries:
    """The usage of the requests of one tenant for one model."""

    __slots__ = (
        "cached_input_tokens",
        "estimated",
        "gpu_s",
        "gpus",
        "input_tokens",
        "output_tokens",
        "overhead_gpu_s",
        "per_token",
    )

    def __init__(self, gpus: float, per_token: DurationHistogram) -> None:
        """`gpus` are the GPUs of one endpoint; `per_token` is the histogram of the model."""
        self.gpus = gpus
        self.per_token = per_token
        self.gpu_s = 0.0
        self.overhead_gpu_s = 0.0
        """GPU time (s) of attempts and responses that are overhead of the fleet, and not the tenant's usage."""
        self.input_tokens = self.cached_input_tokens = self.output_tokens = 0
        self.estimated = 0
        """Requests with tokens that the agent counted, because the engine did not report them."""


class UsageMeter:
    """Usage by tenant and model. The policy bounds the number of series."""

    def __init__(self, per_token: DurationHistograms) -> None:
        """`per_token` are the histograms of the time per output token, by model."""
        self._per_token = per_token
        self._gpus: Mapping[str, float] = {}
        self._named: dict[str, dict[str, UsageSeries]] = {}
        self._others: dict[str, UsageSeries] = {}

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

    def ended(
        self, estimate: WorkEstimate, account: Account, held_s: float, streams: float, streamed_s: float | None
    ) -> None:
        """Count the use of an endpoint by a request that ended; nothing for a removed model.

        Args:
            account: of the request.
            held_s: time (s) for which the request held its slot.
            streams: mean number of requests that shared the GPUs of the endpoint in that time, this request included.
            streamed_s: time (s) from the first byte to the end of the response; None if it is not streamed.
        """
        series = self._series_of(estimate)
        if series is None:
            return
        gpu_s = series.gpus * held_s / streams
        if not account.charges_tenant:
            series.overhead_gpu_s += gpu_s
            return
        series.gpu_s += gpu_s
        usage = account.usage
        if usage is None:
            return
        series.input_tokens += usage.prompt_tokens
        series.cached_input_tokens += usage.cached_tokens
        series.output_tokens += usage.answer_tokens
        if account.is_estimated:
            series.estimated += 1
        elif streamed_s is not None and usage.answer_tokens > 1 and account.outcome is _OK:
            series.per_token.observe(streamed_s / (usage.answer_tokens - 1))

    def overhead(self, estimate: WorkEstimate, held_s: float, streams: float) -> None:
        """Count an attempt that did not serve its request: it was retried elsewhere."""
        series = self._series_of(estimate)
        if series is not None:
            series.overhead_gpu_s += series.gpus * held_s / streams

    def _series_of(self, estimate: WorkEstimate) -> UsageSeries | None:
        by_model = self._named.get(estimate.tenant, self._others)
        series = by_model.get(estimate.model)
        if series is None:
            gpus = self._gpus.get(estimate.model)
            if gpus is None:
                return None
            series = by_model[estimate.model] = UsageSeries(gpus, self._per_token.of(estimate.model))
        return series

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
