"""Balancers that use prompt prefixes and the state of KV caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from random import Random

from lab.simulate.baselines.balancer import Arrival, Balancer, PoolView
from lab.traces.trace import BLOCK_TOKENS

MAX_BLOCKS = 31_250
"""Maximum number of blocks recorded per endpoint (`lruCapacityPerServer` of llm-d's prefix-cache-scorer)."""


class SentPrefixes:
    """The MAX_BLOCKS most recently used prefix blocks that were sent to each endpoint."""

    def __init__(self, size: int) -> None:
        """Create an empty record for `size` endpoints."""
        self._blocks: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(size)]

    def matched(self, index: int, arrival: Arrival) -> int:
        """Return the number of leading blocks of a prompt that were sent to an endpoint before."""
        held, count = self._blocks[index], 0
        for block in arrival.prefix:
            if block not in held:
                break
            count += 1
        return count

    def record(self, index: int, arrival: Arrival) -> None:
        """Record the blocks of a request."""
        held = self._blocks[index]
        for block in arrival.prefix:
            held[block] = None
            held.move_to_end(block)
        while len(held) > MAX_BLOCKS:
            held.popitem(last=False)


class _PrefixAware(Balancer):
    def __init__(self, pool: PoolView, rng: Random) -> None:
        super().__init__(pool, rng)
        self.sent_prefixes = SentPrefixes(pool.size)

    def sent(self, index: int, arrival: Arrival, now: float) -> None:
        """As `Balancer.sent`."""
        self.sent_prefixes.record(index, arrival)

    def _share_held(self, index: int, arrival: Arrival) -> float:
        return self.sent_prefixes.matched(index, arrival) / len(arrival.prefix) if arrival.prefix else 0.0


class LMetric(_PrefixAware):
    """The endpoint with the least product of prefill tokens (waiting tokens plus uncached tokens of the request) and
    batch size (Zhang et al., "LMetric: Simple is better - multiplication may be all you need for LLM request
    scheduling", arXiv 2603.15202).
    """

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer that has sent nothing."""
        super().__init__(pool, rng)
        self._prefill_tokens = [0] * pool.size
        self._uncached: dict[tuple[int, Arrival], int] = {}

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        return self.least(
            (
                (self._prefill_tokens[index] + self._new_tokens(index, arrival)) * self.pool.in_flight(index),
                index,
            )
            for index in range(self.pool.size)
        )

    def sent(self, index: int, arrival: Arrival, now: float) -> None:
        """As `Balancer.sent`."""
        self._uncached[index, arrival] = tokens = self._new_tokens(index, arrival)
        self._prefill_tokens[index] += tokens
        super().sent(index, arrival, now)

    def first_token(self, index: int, arrival: Arrival) -> None:
        """As `Balancer.first_token`."""
        self._prefill_tokens[index] -= self._uncached.pop((index, arrival), 0)

    def _new_tokens(self, index: int, arrival: Arrival) -> int:
        return max(1, arrival.prompt_tokens - self.sent_prefixes.matched(index, arrival) * BLOCK_TOKENS)


QUEUE_THRESHOLD = 5
"""Minimum number of waiting requests of a saturated engine (`queueDepthThreshold`)."""

KV_THRESHOLD = 0.8
"""Minimum use (0-1) of the KV cache of a saturated engine (`kvCacheUtilThreshold`)."""


class LlmdWeighted(_PrefixAware):
    """llm-d's default profile: the endpoint with the greatest weighted sum of prefix-cache-scorer (3), queue-scorer (2)
    and kv-cache-utilization-scorer (2), each 0 to 1; queue lengths are scaled between the shortest and the longest
    (llm-d, "Request Scheduler").
    """

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        reports = [self.pool.report(index) for index in range(self.pool.size)]
        low = min(report.waiting for report in reports)
        high = max(report.waiting for report in reports)
        scored = []
        for index, report in enumerate(reports):
            queue = (high - report.waiting) / (high - low) if high > low else 1.0
            scored.append(
                (-(3.0 * self._share_held(index, arrival) + 2.0 * queue + 2.0 * (1.0 - report.kv_used)), index)
            )
        return self.least(scored)


class LlmdSticky(_PrefixAware):
    """The endpoint with the longest matching prefix, unless it is saturated by the thresholds of llm-d's saturation
    detector; otherwise the choice of `LlmdWeighted`.
    """

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer that has sent nothing."""
        super().__init__(pool, rng)
        self._weighted = LlmdWeighted(pool, rng)
        self._weighted.sent_prefixes = self.sent_prefixes

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        held = [(self.sent_prefixes.matched(index, arrival), index) for index in range(self.pool.size)]
        longest = max(held)[0]
        if longest > 0:
            open_ = [index for blocks, index in held if blocks == longest and not self._is_saturated(index)]
            if open_:
                return self.least((self.pool.in_flight(index), index) for index in open_)
        return self._weighted.choose(arrival, now)

    def _is_saturated(self, index: int) -> bool:
        report = self.pool.report(index)
        return report.waiting >= QUEUE_THRESHOLD or report.kv_used >= KV_THRESHOLD


class SkyWalker(_PrefixAware):
    """The longest prefix match among the endpoints without pending requests; while all endpoints have pending requests,
    requests wait at the balancer: selective pushing by pending requests (Xia et al., "SkyWalker: A locality-aware
    cross-region load balancer for LLM inference", EuroSys 2026, arXiv 2505.24095).
    """

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer that has sent nothing."""
        super().__init__(pool, rng)
        self._unstarted = [0] * pool.size

    def choose(self, arrival: Arrival, now: float) -> int | None:
        """As `Balancer.choose`."""
        open_ = self._open()
        if not open_:
            return None
        longest = max(self.sent_prefixes.matched(index, arrival) for index in open_)
        return self.least(
            (self.pool.in_flight(index), index)
            for index in open_
            if self.sent_prefixes.matched(index, arrival) == longest
        )

    def has_open(self) -> bool:
        """Whether an endpoint has no pending request."""
        return bool(self._open())

    def longest_match(self, arrival: Arrival) -> int:
        """Return the longest prefix match (blocks) among the endpoints without pending requests."""
        return max(self.sent_prefixes.matched(index, arrival) for index in self._open())

    def _open(self) -> list[int]:
        # A request without a first token may be waiting in the engine although the last report does not include it.
        return [
            index
            for index in range(self.pool.size)
            if not self.pool.report(index).waiting and self._unstarted[index] < 2
        ]

    def sent(self, index: int, arrival: Arrival, now: float) -> None:
        """As `Balancer.sent`."""
        self._unstarted[index] += 1
        super().sent(index, arrival, now)

    def first_token(self, index: int, arrival: Arrival) -> None:
        """As `Balancer.first_token`."""
        self._unstarted[index] -= 1


def region_by_skywalker(
    origin: str,
    balancers: Mapping[str, SkyWalker],
    arrival: Arrival,
    nearest_first: Callable[[str, frozenset[str]], Sequence[str]],
) -> str | None:
    """Return the region of a request by SkyWalker's rule: its origin, unless all endpoints there have pending requests;
    then the region with the longest match among those with an endpoint that has none; None where no region has one.

    Args:
        origin: the region where the request entered.
        balancers: the balancer of each region.
        arrival: the request.
        nearest_first: orders regions by their distance from one.
    """
    if balancers[origin].has_open():
        return origin
    open_ = frozenset(name for name, balancer in balancers.items() if balancer.has_open())
    return max(nearest_first(origin, open_), key=lambda name: balancers[name].longest_match(arrival), default=None)
