"""What the endpoints of a pool hold of a request: only what they have not evicted, and only if it is worth a gap."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.answers.token_counts import Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.routing.affinity import NOTHING, AffinityHint
from penstock.routing.endpoint_chooser import EndpointChooser
from penstock.routing.endpoint_selection import NOTHING_HELD, HeldParts, is_stale

EVICTION_PRESSURE, HELD_S, MODEL_GAP_S = 0.5, 300.0, 0.5
BLOCK_BYTES = 1024
"""As documented, and not imported: a test fails if a tuned constant changes."""

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


def test_a_session_and_a_loaded_model_are_worth_half_a_second() -> None:
    chooser = EndpointChooser(Random(1))
    chooser.affinity.sent("b", [], 7, "m", 9.0)
    assert held(chooser, chooser.affinity.held([], 7, 10.0), shares_endpoints=False) == HeldParts({1: 0.0}, 0.5)
    assert held(chooser, NOTHING, shares_endpoints=True) == HeldParts({1: 0.0}, 0.5)


def test_counts_are_stale_after_a_tenth_of_the_service_time() -> None:
    assert not is_stale(0.2, 2.0)
    assert is_stale(0.21, 2.0)


class Learner:
    """Records what is learned of an endpoint's speed."""

    def __init__(self, *, is_due: bool = True) -> None:
        self.due = is_due
        self.learned: list[tuple[float, ...]] = []

    def is_due(self, now: float) -> bool:
        return self.due

    is_first_byte_due = is_due

    def saw_end(self, *learned: float) -> None:
        self.learned.append(learned)

    def saw_first_byte(self, *learned: float) -> None:
        self.learned.append(learned)


def ended(
    usage: Usage | None, unit: CostUnit = CostUnit.TOKEN, *, streaming: bool = True, is_due: bool = True, **fields: Any
) -> tuple[list[tuple[float, ...]], EndpointChooser]:
    """What is learned at 20 s from a response that was expected to end its prefill at 12 s."""
    chooser, learner = EndpointChooser(Random(1)), Learner(is_due=is_due)
    estimate = WorkEstimate("t", "m", Cost(unit, 0.001, 0.01), CostInputs(9000), Work(0.1, 2.0), streaming)
    endpoint = SimpleNamespace(learner=learner)
    placement = SimpleNamespace(
        endpoint=endpoint, estimate=estimate, queued=False, first_byte_at=11.0, prefill_over_at=12.0
    )
    vars(placement).update(fields, mean_streams=lambda: 3.0)
    chooser.learn_response(placement, 20.0, usage)  # type: ignore[arg-type]
    return learner.learned, chooser


USED = Usage(12, 50)


@pytest.mark.parametrize(
    ("learned", "usage", "response"),
    [
        ([(0.5, 9.0, 3.0, 20.0)], USED, {}),
        ([(2.0, 9.0, 3.0, 20.0)], None, {}),
        ([(2.0, 9.0, 3.0, 20.0)], USED, {"unit": CostUnit.AUDIO_SECOND}),
        ([(0.5, 8.0, 3.0, 20.0)], USED, {"streaming": False}),
        ([(0.5, 0.0, 3.0, 20.0)], USED, {"streaming": False, "prefill_over_at": 99.0}),
        ([], USED, {"first_byte_at": None}),
        ([], USED, {"queued": True}),
        ([], USED, {"is_due": False}),
    ],
)
def test_the_speed_of_an_endpoint_is_learned_from_the_work_that_was_done(
    learned: list[tuple[float, ...]], usage: Usage | None, response: dict[str, Any]
) -> None:
    assert ended(usage, **response)[0] == pytest.approx(learned)


def test_the_length_of_answers_is_learned_from_reports_of_tokens_only() -> None:
    for usage, unit, learns in (
        (Usage(12, 50), CostUnit.TOKEN, True),
        (None, CostUnit.TOKEN, False),
        (Usage(12, 50), CostUnit.AUDIO_SECOND, False),
    ):
        _, chooser = ended(usage, unit, queued=True)
        assert chooser.expectations.is_due("t", "m", 20.0) is not learns
        other = EndpointChooser(Random(1))
        estimate = WorkEstimate("t", "m", Cost(unit, 0.001, 0.01), CostInputs(9000), Work(0.1, 2.0), True)
        if usage is not None:
            other.learn_length(estimate, 20.0, usage)
            assert other.expectations.is_due("t", "m", 20.0) is not learns


@pytest.mark.parametrize(
    ("fields", "is_due", "learned"),
    [
        ({}, True, [(0.5, 2.0, 12.0)]),
        ({"ahead_s": 0.0}, True, []),
        ({"queued": True}, True, []),
        ({}, False, []),
    ],
)
def test_the_prefill_speed_is_learned_from_the_first_byte(
    fields: dict[str, Any], is_due: bool, learned: list[tuple[float, ...]]
) -> None:
    learner = Learner(is_due=is_due)
    placement = SimpleNamespace(endpoint=SimpleNamespace(learner=learner), ahead_s=0.5, queued=False, since=10.0)
    vars(placement).update(fields)
    EndpointChooser(Random(1)).learn_first_byte(placement, 12.0)  # type: ignore[arg-type]
    assert learner.learned == learned


def test_what_a_cache_spares_at_most_until_it_is_forgotten() -> None:
    chooser = EndpointChooser(Random(1))
    chooser.affinity.sent("a", [1, 2], None, "m", 0.0)
    chooser.affinity.sent("b", [1], None, "m", 0.0)
    views = [SimpleNamespace(pressure=0.0), SimpleNamespace(pressure=0.0)]
    pool = SimpleNamespace(positions={"a": 0, "b": 1}, views=views, shares_endpoints=True)
    estimate = SimpleNamespace(model="m", cost=SimpleNamespace(input_unit_s=0.001), prefix=[1, 2, 3])
    block_s = chooser.block_s(estimate)  # type: ignore[arg-type]
    assert block_s == pytest.approx(BLOCK_BYTES * chooser.expectations.tokens_per_byte("m") * 0.001)
    spared = [chooser.spared_s(pool, estimate, now) for now in (1.0, HELD_S - 1, HELD_S + 1)]  # type: ignore[arg-type]
    assert spared == pytest.approx([2 * block_s, 2 * block_s, 0.0])
    estimate.prefix = []
    assert chooser.spared_s(pool, estimate, 1.0) == 0.0  # type: ignore[arg-type]
