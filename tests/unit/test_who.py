"""Choosing the endpoint: least loaded for its size, never the same first one, never a full one."""

from __future__ import annotations

from collections import Counter
from random import Random

from penstock.reasons import Reason
from penstock.who import EndpointView, choose_endpoint


def endpoint(name: str, in_flight: int = 0, **fields: object) -> EndpointView:
    settings: dict[str, object] = {"slots": 4, "limit": 8, "ready": True, "in_flight": in_flight, **fields}
    return EndpointView(name, **settings)  # type: ignore[arg-type]


def chosen(endpoints: list[EndpointView], seed: int = 0, **arguments: object) -> str | None:
    who = choose_endpoint(endpoints, Random(seed), **arguments)  # type: ignore[arg-type]
    return None if who.index is None else endpoints[who.index].name


def test_the_least_loaded_for_its_size_wins() -> None:
    assert chosen([endpoint("small", 1, slots=2, limit=4), endpoint("large", 2, slots=8, limit=16)]) == "large"


def test_ties_are_broken_at_random() -> None:
    pool = [endpoint("a"), endpoint("b"), endpoint("c")]
    counts = Counter(chosen(pool, seed) for seed in range(300))
    assert set(counts) == {"a", "b", "c"}
    assert max(counts.values()) < 150


def test_a_warming_endpoint_gets_less() -> None:
    assert chosen([endpoint("cold", 0, weight=0.1), endpoint("warm", 2)]) == "warm"


def test_what_cannot_take_it_is_left_out_with_its_reason() -> None:
    pool = [
        endpoint("tried"),
        endpoint("draining", draining=True),
        endpoint("unready", ready=False),
        endpoint("full", in_flight=8),
    ]
    who = choose_endpoint(pool, Random(0), tried={"tried"})
    assert who.index is None
    assert {one.what: one.reason for one in who.rejected} == {
        "tried": Reason.ALREADY_TRIED,
        "draining": Reason.ENDPOINT_DRAINING,
        "unready": Reason.ENDPOINT_NOT_READY,
        "full": Reason.ENDPOINT_FULL,
    }


def test_an_empty_pool_has_nobody() -> None:
    assert chosen([]) is None


def test_an_old_view_is_sampled_not_scanned() -> None:
    pool = [endpoint("idle"), *(endpoint(f"busy-{n}", 3) for n in range(9))]
    fresh = Counter(chosen(pool, seed) for seed in range(200))
    stale = Counter(chosen(pool, seed, view_age_s=1.0, service_s=2.0) for seed in range(200))
    assert fresh == {"idle": 200}
    assert 20 < stale["idle"] < 80, "two of ten at random see the idle one a fifth of the time"
