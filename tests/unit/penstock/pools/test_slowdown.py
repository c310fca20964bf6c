"""The slowdown of an endpoint is relative to its siblings alone, and only where speeds are learned."""

from __future__ import annotations

import pytest

from penstock.pools.pool_accounting import EndpointAccount, PoolAccount
from penstock.pools.slowdown import slowdowns
from penstock.routing.endpoint_selection import EndpointView

CALIBRATED_AFTER, FADED_S = 4, 180.0
"""As documented, and not imported: a test fails if a tuned constant changes."""


def taught(name: str, slowness: float, completions: int = 60, at: float = 0.0) -> EndpointAccount:
    endpoint = EndpointAccount(EndpointView(name, 8, 8, ready=True), "h100")
    for number in range(completions):
        streams = 1 + number % 8
        endpoint.learner.saw_end(1.0, slowness * (1.0 + 0.02 * streams), streams, at + number * 0.1)
    return endpoint


def found(*endpoints: EndpointAccount, family: object = "f") -> dict[str, float]:
    pool: PoolAccount[EndpointAccount] = PoolAccount()
    pool.set_endpoints(list(endpoints))
    pool.update_speeds()
    return dict(slowdowns((endpoint, family) for endpoint in endpoints))


def test_an_endpoint_is_compared_with_the_median_of_its_siblings() -> None:
    ratios = found(taught("a", 1.0), taught("b", 1.0), taught("c", 1.0), taught("slow", 1.5))
    assert ratios["slow"] == pytest.approx(1.5, rel=0.1)
    assert [ratios[name] for name in "abc"] == pytest.approx([1.0] * 3, rel=0.1)


def test_endpoints_without_siblings_or_without_a_learned_speed_have_no_slowdown() -> None:
    assert found(taught("a", 3.0)) == {}
    assert found(taught("a", 3.0), taught("b", 1.0, CALIBRATED_AFTER - 1)) == {}
    two = [taught("a", 3.0), taught("b", 1.0)]
    found(*two)
    assert slowdowns((endpoint, endpoint.name) for endpoint in two) == {}


def test_a_slowdown_that_ended_disappears_with_new_completions_of_siblings() -> None:
    siblings = [taught(name, 1.0, at=2 * FADED_S) for name in "bcd"]
    assert found(taught("a", 4.0), *siblings)["a"] == pytest.approx(1.0, rel=0.1)
