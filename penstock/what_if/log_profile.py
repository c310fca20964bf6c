"""What access logs show of a workload: arrivals, cost, mix, concurrency, prefix reuse, and the slots for them.

Memory is bounded: distributions are counted in buckets of 5 %, arrivals by minute, concurrency in steps of 10 s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import ceil, exp, log
from typing import Annotated, Final

import msgspec

from penstock.accounts.outcome_rules import Outcome

STEP_S = 10.0
"""Length (s) of the steps of which the concurrency is averaged."""

MINUTE_S = 60.0

BUCKET = log(1.05)
"""Width of a bucket of a distribution, as a logarithm: quantiles are exact to 5 %."""

MAX_STEPS = 5_000_000
"""Maximum number of steps of all pools together: a month of 19 pools."""

MAX_NAMES = 1_000
"""Maximum number of models, and of tenants, that are listed by name."""

MAX_REQUEST_S = 86_400.0
"""Longest request that counts in the concurrency."""

MAX_MS = 1e12
"""Largest valid time (ms), and largest work (s)."""

MAX_TOKENS = 10**12
"""Largest valid number of tokens of one request."""

MAX_TIME = 4e9
"""Unix time (s), of the year 2096, before which requests have to end; later ones are errors of the logs."""

OTHER = "other"

_NO_SERVER: Final = frozenset({"", "none"})
"""The serving region in lines of requests that none served."""

_WITHOUT_SLOT: Final = frozenset({Outcome.CACHED, Outcome.REFUSED, Outcome.DEFERRED})
"""Outcomes of requests that held no slot, or none when they ended."""

UTILISATION = 0.8
"""Part (0-1) of the proposed slots that the busiest 10 s of 99 of 100 use."""


class TooMuch(Exception):
    """The logs cover more time and pools than a profile can hold."""


_Time = Annotated[float, msgspec.Meta(ge=-MAX_MS, le=MAX_MS)]
_Tokens = Annotated[int, msgspec.Meta(ge=-MAX_TOKENS, le=MAX_TOKENS)]


class LoggedRequest(msgspec.Struct, frozen=True):
    """The fields of a line of an access log that a profile uses."""

    at: Annotated[float, msgspec.Meta(ge=0, lt=MAX_TIME)]
    """Unix time (s) at the end of the request."""
    tenant: str
    model: str
    kind: str
    server: str
    outcome: str
    total_ms: _Time
    ttft_ms: _Time | None = None
    queue_ms: _Time | None = None
    work_s: _Time = 0.0
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    cached_tokens: _Tokens = 0


class Distribution(msgspec.Struct, frozen=True):
    """Quantiles of a quantity, exact to 5 %."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


class PoolProposal(msgspec.Struct, frozen=True):
    """The slots that the logged requests of one region and model would need."""

    region: str
    model: str
    mean: float
    """Mean concurrent requests."""
    p99: float
    """Concurrent requests, averaged over 10 s, that 99 of 100 such times do not exceed."""
    slots: int
    """`p99` at a utilisation of 0.8."""


class ModelProposal(msgspec.Struct, frozen=True):
    """The slots of a model in all regions, and the reserve for the loss of its largest region."""

    model: str
    slots: int
    reserve: int
    """Slots that the other regions need besides, to serve the requests of the largest region."""
    lost: str
    """That region."""
    prefix_reuse: float | None
    """Part (0-1) of the prompt tokens that engines read from their prefix caches; None if no engine reports any."""


class Profile(msgspec.Struct, frozen=True):
    """The profile of a workload."""

    requests: int
    forwarded: int
    """Lines of serving regions about requests that another region's log has too; they count in nothing else."""
    begins_at: float
    """Unix time (s) since which arrivals and concurrency count: the first arrival, or the median duration before the
    first end. Logs have requests by their end, so of what ran before them they show the longest requests alone."""
    ends_at: float
    per_s: float
    """Mean arrivals per second."""
    per_s_p99: float
    """Arrivals per second in a minute that 99 of 100 minutes do not exceed."""
    per_s_max: float
    outcomes: dict[str, int]
    models: dict[str, int]
    tenants: dict[str, int]
    distributions: dict[str, Distribution]
    pools: tuple[PoolProposal, ...]
    proposals: tuple[ModelProposal, ...]


class LogProfiler:
    """Adds up the lines of access logs, in any order."""

    def __init__(self) -> None:
        self._requests = self._forwarded = 0
        self._arrived_at = self._ended_at = float("inf")
        self._ends_at = 0.0
        self._taken = _Buckets()
        """Durations (s) of all requests."""
        self._arrivals: Counter[int] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._models: Counter[str] = Counter()
        self._tenants: Counter[str] = Counter()
        self._values: dict[str, _Buckets] = {}
        self._prompts: Counter[str] = Counter()
        """Prompt tokens by model."""
        self._cached: Counter[str] = Counter()
        """The part of them that was read from prefix caches."""
        self._busy: dict[tuple[str, str], dict[int, float]] = {}
        self._steps = 0

    def add(self, request: LoggedRequest) -> None:
        """Count one line.

        Raises:
            TooMuch: the logs have more steps than MAX_STEPS.
        """
        if request.kind == "forwarded":
            self._forwarded += 1
            return
        taken_s = min(MAX_REQUEST_S, max(0.0, request.total_ms / 1000))
        began_at = request.at - taken_s
        self._requests += 1
        self._arrived_at, self._ended_at = min(self._arrived_at, began_at), min(self._ended_at, request.at)
        self._ends_at = max(self._ends_at, request.at)
        self._taken.add(taken_s)
        self._arrivals[int(began_at // MINUTE_S)] += 1
        self._outcomes[request.outcome] += 1
        _count(self._models, request.model)
        _count(self._tenants, request.tenant)
        model = request.model if request.model in self._models else OTHER
        if request.server not in _NO_SERVER and request.outcome not in _WITHOUT_SLOT:
            # Requests that fail, and those whose clients leave, hold their slots too.
            queued_s = max(0.0, (request.queue_ms or 0.0) / 1000)
            self._occupy((request.server, model), min(request.at, began_at + queued_s), request.at)
        if request.outcome != Outcome.OK:
            return
        values = {
            "duration_s": taken_s,
            "first_byte_s": None if request.ttft_ms is None else request.ttft_ms / 1000,
            "queue_s": None if request.queue_ms is None else request.queue_ms / 1000,
            "work_s": request.work_s or None,
            "input_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
        }
        for name, value in values.items():
            if value is not None and value >= 0.0:
                self._values.setdefault(name, _Buckets()).add(value)
        prompt = max(0, request.input_tokens or 0)
        self._prompts[model] += prompt
        self._cached[model] += min(prompt, max(0, request.cached_tokens))

    def profile(self) -> Profile:
        """Return the profile of all lines so far."""
        begins_at = 0.0
        if self._requests:
            begins_at = max(self._arrived_at, self._ended_at - self._taken.distribution().p50)
        first, last = int(begins_at // MINUTE_S), int(self._ends_at // MINUTE_S)
        minutes = max(1, last - first + 1)
        lasts_s = max(1.0, self._ends_at - begins_at)
        arrivals = [count for minute, count in self._arrivals.items() if minute >= first]
        minute_s = min(MINUTE_S, lasts_s)
        # A log of a minute may lie in two: its steps are all within it, and no average exceeds the busiest minute.
        steps = int(self._ends_at // STEP_S) - int(begins_at // STEP_S) + 1
        pools = tuple(self._pool(key, begins_at, steps) for key in sorted(self._busy))
        per_s = self._requests / lasts_s
        return Profile(
            requests=self._requests,
            forwarded=self._forwarded,
            begins_at=begins_at,
            ends_at=self._ends_at,
            per_s=per_s,
            per_s_p99=_quantile(arrivals, minutes, 0.99) / minute_s,
            per_s_max=max(per_s, max(arrivals, default=0) / minute_s),
            outcomes=dict(self._outcomes.most_common()),
            models=dict(self._models.most_common()),
            tenants=dict(self._tenants.most_common()),
            distributions={name: values.distribution() for name, values in self._values.items()},
            pools=pools,
            proposals=tuple(
                _proposal(model, pools, self._cached[model] / self._prompts[model] if self._cached[model] else None)
                for model in sorted({pool.model for pool in pools})
            ),
        )

    def _occupy(self, pool: tuple[str, str], begins_at: float, ends_at: float) -> None:
        busy = self._busy.setdefault(pool, {})
        before = len(busy)
        step = int(begins_at // STEP_S)
        while step * STEP_S < ends_at:
            inside_s = min(ends_at, (step + 1) * STEP_S) - max(begins_at, step * STEP_S)
            busy[step] = busy.get(step, 0.0) + inside_s / STEP_S
            step += 1
        self._steps += len(busy) - before
        if self._steps > MAX_STEPS:
            raise TooMuch(f"more than {MAX_STEPS} steps of {STEP_S:g} s of regions and models; read fewer logs at once")

    def _pool(self, key: tuple[str, str], begins_at: float, steps: int) -> PoolProposal:
        busy = [load for step, load in self._busy[key].items() if step >= begins_at // STEP_S]
        steps = max(len(busy), steps)
        p99 = _quantile(busy, steps, 0.99)
        return PoolProposal(*key, sum(busy) / steps, p99, max(1, ceil(p99 / UTILISATION)))


class _Buckets:
    """A distribution in buckets of 5 %."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._zeros = 0
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._sum += value
        if value <= 0.0:
            self._zeros += 1
        else:
            self._counts[round(log(value) / BUCKET)] += 1

    def distribution(self) -> Distribution:
        count = self._zeros + self._counts.total()
        return Distribution(count, self._sum / count, *(self._quantile(share, count) for share in (0.5, 0.9, 0.99)))

    def _quantile(self, share: float, count: int) -> float:
        seen, wanted = self._zeros, share * count
        if seen >= wanted:
            return 0.0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return exp(bucket * BUCKET)
        return 0.0


def _count(counter: Counter[str], name: str) -> None:
    counter[name if name in counter or len(counter) < MAX_NAMES else OTHER] += 1


def _quantile(values: Iterable[float], of: int, share: float) -> float:
    """The quantile of values of which those that are missing, up to `of`, are 0."""
    ordered = sorted(values)
    at = ceil(share * of) - 1 - (of - len(ordered))
    return ordered[at] if 0 <= at < len(ordered) else 0.0


def _proposal(model: str, pools: Iterable[PoolProposal], prefix_reuse: float | None) -> ModelProposal:
    own = [pool for pool in pools if pool.model == model]
    largest = max(own, key=lambda pool: (pool.slots, pool.region))
    return ModelProposal(model, sum(pool.slots for pool in own), largest.slots, largest.region, prefix_reuse)
