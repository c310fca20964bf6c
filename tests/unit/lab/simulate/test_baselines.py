"""Each baseline chooses as its authors describe, on a pool with a given load."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from lab.simulate.baselines.balancer import Arrival, EngineReport, Probe
from lab.simulate.baselines.clairvoyant import by_arrival, shortest_first, shortest_with_age
from lab.simulate.baselines.classic import (
    EnvoyWeightedLeastRequest,
    LeastRequest,
    PowerOfTwo,
    RandomChoice,
    RoundRobin,
)
from lab.simulate.baselines.inference import LlmdSticky, LlmdWeighted, LMetric, SentPrefixes, SkyWalker
from lab.simulate.baselines.prequal import Prequal
from lab.simulate.baselines.regional import AllOrNothing, EnvoyPriorities, LatencyOnly, RegionReport

CHAT = Arrival(2048, (1, 2, 3, 4), 0.0)
OTHER = Arrival(2048, (9, 8), 0.0)


class Pool:
    """Endpoints with the given load."""

    def __init__(
        self,
        counts: list[int],
        *,
        weights: tuple[float, ...] = (),
        waiting: tuple[int, ...] = (),
        kv_used: tuple[float, ...] = (),
        latency_s: tuple[float, ...] = (),
    ) -> None:
        self.size = len(counts)
        self.counts = counts
        self.weights = weights or (1.0,) * self.size
        self.waiting = list(waiting or (0,) * self.size)
        self.kv_used = list(kv_used or (0.0,) * self.size)
        self.asked: list[int] = []
        self.latency_s = latency_s or (1.0,) * self.size

    def in_flight(self, index: int) -> int:
        return self.counts[index]

    def report(self, index: int) -> EngineReport:
        return EngineReport(self.counts[index], self.waiting[index], self.kv_used[index])

    def probe(self, index: int) -> Probe:
        self.asked.append(index)
        return Probe(self.counts[index], self.latency_s[index])


def test_round_robin_takes_each_in_turn() -> None:
    balancer = RoundRobin(Pool([5, 0, 3, 1]), Random(1))
    assert sorted(balancer.choose(CHAT, 0.0) for _ in range(4)) == [0, 1, 2, 3]


def test_random_takes_all_about_as_often() -> None:
    balancer = RandomChoice(Pool([9, 0, 0, 0]), Random(1))
    taken = Counter(balancer.choose(CHAT, 0.0) for _ in range(4000))
    assert all(900 < taken[index] < 1100 for index in range(4))


def test_least_request_takes_the_fewest_and_breaks_ties_at_random() -> None:
    balancer = LeastRequest(Pool([2, 1, 3, 1]), Random(1))
    assert {balancer.choose(CHAT, 0.0) for _ in range(50)} == {1, 3}


def test_two_choices_never_take_the_fullest_and_do_not_only_take_the_emptiest() -> None:
    balancer = PowerOfTwo(Pool([0, 1, 2, 3]), Random(1))
    taken = Counter(balancer.choose(CHAT, 0.0) for _ in range(1200))
    assert taken[3] == 0
    assert 500 < taken[0] < 700
    assert 300 < taken[1] < 500


def test_envoy_divides_weights_by_active_requests() -> None:
    idle = EnvoyWeightedLeastRequest(Pool([0, 0], weights=(1.0, 3.0)), Random(1))
    assert 290 <= Counter(idle.choose(CHAT, 0.0) for _ in range(400))[1] <= 310
    busy = EnvoyWeightedLeastRequest(Pool([0, 5], weights=(1.0, 3.0)), Random(1))
    assert 123 <= Counter(busy.choose(CHAT, 0.0) for _ in range(400))[1] <= 143


def test_prequal_takes_the_fastest_of_the_cold_servers() -> None:
    balancer = Prequal(Pool([9] + [1] * 9, latency_s=(0.1, 0.2) + (0.9,) * 8), Random(1))
    taken = Counter(balancer.choose(CHAT, turn / 100) for turn in range(300))
    assert taken[0] <= 5  # the fastest has most requests
    assert taken[1] > 2 * taken[2]


def test_prequal_drops_old_replies() -> None:
    pool = Pool([0] * 20, latency_s=(0.1,) * 20)
    balancer = Prequal(pool, Random(1))
    for _ in range(10):
        balancer.choose(CHAT, 0.0)
    pool.latency_s = (5.0,) * 20
    pool.asked.clear()
    assert balancer.choose(CHAT, 10.0) in pool.asked


def test_notes_match_leading_blocks_only() -> None:
    prefixes = SentPrefixes(2)
    prefixes.record(1, Arrival(1024, (1, 2), 0.0))
    assert [prefixes.matched(index, CHAT) for index in range(2)] == [0, 2]
    assert prefixes.matched(1, Arrival(1024, (7, 1), 0.0)) == 0


def test_lmetric_multiplies_new_tokens_by_batch_size() -> None:
    balancer = LMetric(Pool([4, 3]), Random(1))
    balancer.sent(0, CHAT, 0.0)
    balancer.first_token(0, CHAT)
    again = CHAT._replace(at=1.0)
    assert balancer.choose(again, 1.0) == 0  # 1 token times 4 against 2048 times 3
    assert balancer.choose(OTHER, 1.0) == 1
    balancer.sent(1, OTHER, 1.0)
    assert balancer.choose(Arrival(100, (), 2.0), 2.0) == 0  # 2048 tokens wait at the other endpoint


def test_llmd_weighs_prefix_queue_and_cache() -> None:
    pool = Pool([0, 0], waiting=(2, 0))
    balancer = LlmdWeighted(pool, Random(1))
    assert balancer.choose(CHAT, 0.0) == 1
    balancer.sent(0, CHAT, 0.0)
    assert balancer.choose(CHAT, 0.0) == 0  # 3 for the prefix against 2 for the queue
    pool.kv_used[0] = 0.6
    assert balancer.choose(CHAT, 0.0) == 1


def test_llmd_sticks_until_saturated() -> None:
    pool = Pool([0, 0], waiting=(4, 0))
    balancer = LlmdSticky(pool, Random(1))
    balancer.sent(0, CHAT, 0.0)
    pool.kv_used[0] = 0.79
    assert balancer.choose(CHAT, 0.0) == 0
    pool.waiting[0] = 5
    assert balancer.choose(CHAT, 0.0) == 1


def test_skywalker_sends_only_where_nothing_waits() -> None:
    pool = Pool([1, 1], waiting=(0, 0))
    balancer = SkyWalker(pool, Random(1))
    balancer.sent(0, CHAT, 0.0)
    balancer.first_token(0, CHAT)
    assert balancer.choose(CHAT, 0.0) == 0
    pool.waiting[:] = [1, 0]
    assert balancer.choose(CHAT, 0.0) == 1
    pool.waiting[:] = [1, 1]
    assert balancer.choose(CHAT, 0.0) is None


def test_clairvoyant_orders() -> None:
    long_first, short_later = (0.0, 9.0), (1.0, 2.0)
    assert by_arrival(*long_first) < by_arrival(*short_later)
    assert shortest_first(*short_later) < shortest_first(*long_first)
    assert shortest_with_age(*short_later) < shortest_with_age(*long_first) < shortest_with_age(10.0, 2.0)


def test_regional_baselines() -> None:
    order = ("home", "near", "far")
    full, room = RegionReport(10, 10), RegionReport(10, 9)
    reports = {"home": full, "near": full, "far": room}
    assert LatencyOnly().shares(order, reports) == {"home": 1.0}
    assert AllOrNothing().shares(order, reports) == {"far": 1.0}
    assert AllOrNothing().shares(order, dict.fromkeys(order, full)) == {"home": 1.0}
    half = reports | {"home": RegionReport(10, 0, healthy=0.5)}
    assert EnvoyPriorities().shares(order, half) == pytest.approx({"home": 0.7, "near": 0.3})
    assert EnvoyPriorities().shares(order, reports) == {"home": 1.0}
