"""Balancers that use at most the number of requests in flight."""

from __future__ import annotations

from heapq import heapify, heapreplace
from random import Random

from lab.simulate.baselines.balancer import Arrival, Balancer, PoolView


class RoundRobin(Balancer):
    """Each endpoint in turn, as nginx's `upstream` does by default."""

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer that starts at a random endpoint."""
        super().__init__(pool, rng)
        self._turn = rng.randrange(pool.size)

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        self._turn = (self._turn + 1) % self.pool.size
        return self._turn


class RandomChoice(Balancer):
    """An endpoint at random with equal probabilities: Envoy's `RANDOM`."""

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        return int(self.rng.random() * self.pool.size)


class LeastRequest(Balancer):
    """The endpoint with the fewest requests in flight: nginx's `least_conn`, HAProxy's `leastconn`.

    `PoolView.in_flight` returns the agent's own counts or the counts that agents share.
    """

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        return self.least((self.pool.in_flight(index), index) for index in range(self.pool.size))


class PowerOfTwo(Balancer):
    """The less loaded of two random endpoints (Mitzenmacher, "The power of two choices in randomized load balancing",
    IEEE TPDS 2001): Envoy's `LEAST_REQUEST` with equal weights.
    """

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        first = int(self.rng.random() * self.pool.size)
        second = int(self.rng.random() * (self.pool.size - 1))
        second += second >= first
        return first if self.pool.in_flight(first) <= self.pool.in_flight(second) else second


class EnvoyWeightedLeastRequest(Balancer):
    """Envoy's `LEAST_REQUEST` with unequal weights: a weighted round robin by earliest deadline, in which an endpoint's
    weight is divided by its active requests plus one (`active_request_bias` 1.0). Source: Envoy's documentation,
    "Supported load balancers", weighted least request. With equal weights Envoy uses the less loaded of two
    random endpoints.
    """

    def __init__(self, pool: PoolView, rng: Random) -> None:
        """Create a balancer with the endpoints in random order."""
        super().__init__(pool, rng)
        self._is_weighted = len(set(pool.weights)) > 1
        self._two = PowerOfTwo(pool, rng)
        self._deadlines = [(rng.random() / pool.weights[index], index) for index in range(pool.size)]
        heapify(self._deadlines)

    def choose(self, arrival: Arrival, now: float) -> int:
        """As `Balancer.choose`."""
        if not self._is_weighted:
            return self._two.choose(arrival, now)
        deadline, index = self._deadlines[0]
        weight = self.pool.weights[index] / (self.pool.in_flight(index) + 1)
        heapreplace(self._deadlines, (deadline + 1.0 / weight, index))
        return index
