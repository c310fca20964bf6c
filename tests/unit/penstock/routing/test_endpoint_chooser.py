"""What the endpoints of a pool hold of a request: only what they have not evicted, and only if it is worth a gap."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from penstock.routing.affinity import BLOCK_BYTES, EVICTION_PRESSURE, MODEL_GAP_S, NOTHING, AffinityHint
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.endpoint_selection import NOTHING_HELD, HeldParts, is_stale

ESTIMATE = SimpleNamespace(model="m", cost=SimpleNamespace(input_unit_s=0.001))


def held(chooser: EndpointChooser, known: AffinityHint, *, shares_endpoints: bool, pressure: float = 0.0) -> HeldParts:
    """What the endpoints `a` and `b` hold; `a` has a pressure."""
    views = [SimpleNamespace(pressure=pressure), SimpleNamespace(pressure=0.0)]
    pool = SimpleNamespace(positions={"a": 0, "b": 1}, views=views, shares_endpoints=shares_endpoints)
    return chooser._held(pool, ESTIMATE, known, 10.0)  # type: ignore[arg-type]


def test_blocks_spare_their_prefill_at_endpoints_of_the_pool() -> None:
    chooser = EndpointChooser(Random(1))
    block_s = BLOCK_BYTES * chooser.expectations.tokens_per_byte("m") * 0.001
    found = held(chooser, AffinityHint({"a": 2, "b": 1, "gone": 9}, 0.3), shares_endpoints=True)
    assert found.spared_s == pytest.approx({0: 2 * block_s, 1: block_s})
    assert found.gap_s == 0.3
    evicts = held(chooser, AffinityHint({"a": 2, "b": 1}, 0.3), shares_endpoints=False, pressure=EVICTION_PRESSURE)
    assert evicts.spared_s.keys() == {1}
    almost = held(chooser, AffinityHint({"a": 2}, 0.3), shares_endpoints=False, pressure=EVICTION_PRESSURE - 0.01)
    assert almost.spared_s.keys() == {0}


def test_without_blocks_an_endpoint_that_runs_the_model_is_worth_a_gap_where_pools_share_endpoints() -> None:
    chooser = EndpointChooser(Random(1))
    chooser.affinity.sent("a", [], None, "m", 9.0)
    chooser.affinity.sent("b", [], None, "other", 9.0)
    chooser.affinity.sent("gone", [], None, "m", 9.0)
    found = held(chooser, NOTHING, shares_endpoints=True)
    assert (found.spared_s, found.gap_s) == ({0: 0.0}, MODEL_GAP_S)
    assert held(chooser, NOTHING, shares_endpoints=True, pressure=EVICTION_PRESSURE).spared_s == {}
    assert held(chooser, NOTHING, shares_endpoints=False) is NOTHING_HELD


def test_counts_are_stale_after_a_tenth_of_the_service_time() -> None:
    assert not is_stale(0.2, 2.0)
    assert is_stale(0.21, 2.0)
