"""Tokens, GPU time and time per output token of the requests that this region's endpoints served, by their accounts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from heapq import nlargest
from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.meters.duration_histogram import DurationHistogram
from penstock.pools.placement import WorkEstimate

_OK: Final = Outcome.OK
"""A module constant, since in Python 3.11 access to an enum member through its class is a function call."""

OTHER_TENANTS: Final = "other"
"""The label of tenants without separate series."""

RANK_S: Final = 300.0
"""Interval (s) at which the tenants with the most use are found."""

MAX_RANKED: Final = 4096
"""Maximum number of tenants whose use is compared; those that come later in an interval are not."""

KEEPS: Final = 2.0
"""A tenant loses its series only to one that used this many times as much: each change ends series."""


class UsageSeries:
    """The usage of the requests of one tenant for one model."""

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
    """Usage by tenant and model. Named tenants have series of their own, and of the others those with the most use."""

    def __init__(self, per_token: Callable[[str], DurationHistogram], max_busy: int) -> None:
        """Create a meter without named tenants.

        Args:
            per_token: returns the histogram of the time per output token of a model.
            max_busy: number of tenants that have series because of their use.
        """
        self._per_token = per_token
        self._max_busy = max_busy
        self._busy: dict[str, dict[str, UsageSeries]] = {}
        self._recent: dict[str, float] = {}
        """GPU time (s) in the interval, of tenants that are not named."""
        self._rank_at = 0.0
        self._gpus: Mapping[str, float] = {}
        self._named: dict[str, dict[str, UsageSeries]] = {}
        self._others: dict[str, UsageSeries] = {}

    def use_names(self, tenants: Collection[str], gpus: Mapping[str, float]) -> None:
        """Use the names of a newly accepted policy, and drop the series of removed names.

        Args:
            tenants: tenants with separate series, whatever they use.
            gpus: GPUs of one endpoint, by model.
        """
        self._gpus = gpus
        known = self._busy | self._named
        self._named = {tenant: self._kept(known.get(tenant, {})) for tenant in tenants}
        self._busy = {tenant: self._kept(each) for tenant, each in self._busy.items() if tenant not in self._named}
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
        if estimate.tenant not in self._named:
            self._rank(estimate.tenant, held_s / streams, account.ended_at)
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
        by_model = self._named.get(estimate.tenant)
        if by_model is None:
            by_model = self._busy.get(estimate.tenant, self._others)
        series = by_model.get(estimate.model)
        if series is None:
            gpus = self._gpus.get(estimate.model)
            if gpus is None:
                return None
            series = by_model[estimate.model] = UsageSeries(gpus, self._per_token(estimate.model))
        return series

    def _rank(self, tenant: str, used_s: float, now: float) -> None:
        """Count the use of a tenant that is not named, and find those with the most use if it is time."""
        recent, busy = self._recent, self._busy
        if tenant in recent or len(recent) < MAX_RANKED:
            recent[tenant] = recent.get(tenant, 0.0) + used_s
        if now >= self._rank_at:
            scores = dict.fromkeys(busy, 0.0) | {
                name: used * (KEEPS if name in busy else 1.0) for name, used in recent.items()
            }
            top = nlargest(self._max_busy, scores, key=scores.__getitem__)
            self._busy = {name: busy.get(name, {}) for name in top}
            self._recent, self._rank_at = {}, now + RANK_S
        elif tenant not in busy and len(busy) < self._max_busy:
            busy[tenant] = {}

    def series(self) -> list[tuple[str, str, UsageSeries]]:
        """Return every series with its tenant and model."""
        by_tenant = [*self._named.items(), *self._busy.items(), (OTHER_TENANTS, self._others)]
        return [(tenant, model, series) for tenant, by_model in by_tenant for model, series in by_model.items()]

    def _kept(self, by_model: dict[str, UsageSeries]) -> dict[str, UsageSeries]:
        kept = {}
        for model, series in by_model.items():
            if model in self._gpus:
                series.gpus = self._gpus[model]
                kept[model] = series
        return kept
