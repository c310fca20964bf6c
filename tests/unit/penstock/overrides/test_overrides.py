"""Overrides: when they apply, their effect, and the errors of invalid ones."""

from __future__ import annotations

import pytest

from penstock.overrides.override_effects import Interventions
from penstock.overrides.overrides import Override, OverrideKind, OverrideSet, duplicate_of, lifted, validation_error
from tests.support.override_builders import RAMP_S, drain, drain_endpoint, fail_over, freeze, override, weight
from tests.support.planet import MODEL, policy

POLICY = policy()


def test_a_drain_grants_nothing_while_it_holds_and_then_a_ramp() -> None:
    german_drain = drain("eu-de", begins_at=10.0, expires_at=20.0)
    weights = [german_drain.weight(now, RAMP_S) for now in (10.0, 19.9, 20.0, 25.0, 30.0)]
    assert weights == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert [german_drain.holds(now) for now in (10.0, 20.0)] == [True, False]
    assert [german_drain.over(now, RAMP_S) for now in (29.9, 30.0)] == [False, True]


def test_a_drain_holds_under_a_leader_whose_clock_is_behind() -> None:
    emergency = drain("eu-de", begins_at=3600.0)
    assert emergency.holds(5.0)
    assert emergency.weight(5.0, RAMP_S) == 0.0
    assert Interventions((emergency,), RAMP_S, 5.0).drained == {"eu-de"}


def test_a_weight_ramps_from_its_value() -> None:
    german_weight = weight("eu-de", 0.4, expires_at=20.0)
    assert [german_weight.weight(now, RAMP_S) for now in (5.0, 20.0, 25.0)] == pytest.approx([0.4, 0.4, 0.7])


def test_lifting_ends_it_then_and_not_when_it_would_have_expired() -> None:
    lifted_drain = lifted(drain("eu-de", expires_at=100.0), "operator", 50.0)
    assert (lifted_drain.ends_at, lifted_drain.lifted_by) == (50.0, "operator")
    assert lifted(drain("eu-de"), "operator", 50.0).ends_at == 50.0
    assert lifted(drain("eu-de", expires_at=40.0), "operator", 50.0).ends_at == 40.0


def test_without_a_ramp_nothing_follows_from_what_has_ended() -> None:
    expired_drain = drain("eu-de", expires_at=20.0)
    assert expired_drain.weight(20.0, 0.0) == 1.0
    assert expired_drain.over(20.0, 0.0)


def test_one_that_was_lifted_before_it_began_does_nothing() -> None:
    lifted_drain = lifted(drain("eu-de", begins_at=100.0), "operator", 50.0)
    assert lifted_drain.over(60.0, RAMP_S)
    assert lifted_drain.weight(101.0, RAMP_S) == 1.0


@pytest.mark.parametrize(
    ("invalid", "reported"),
    [
        (drain("mars"), "region: the policy has no region mars"),
        (drain("eu-de", origin="mars"), "origin: the policy has no region mars"),
        (drain("eu-de", model="gpt"), "model: the policy has no model gpt"),
        (override(OverrideKind.DRAIN), "region: required for a drain"),
        (freeze(region="eu-de"), "region: a freeze applies to plans"),
        (override(OverrideKind.WEIGHT, "eu-de"), "value: required for a weight"),
        (override(OverrideKind.DRAIN_ENDPOINT, "eu-de"), "endpoint: required for a drain_endpoint"),
        (override(OverrideKind.DRAIN_ENDPOINT, endpoint="gpu-1"), "region: required for a drain_endpoint"),
        (drain("eu-de", endpoint="gpu-1"), "endpoint: required for a drain_endpoint, and not allowed for other kinds"),
        (drain_endpoint("eu-de", "gpu-1", model=MODEL), "model, origin: a drained endpoint receives no request"),
        (drain("eu-de", value=0.5), "value: required for a weight, and not allowed for other kinds"),
        (weight("eu-de", 1.0), "value: not from 0 to below 1"),
        (weight("eu-de", float("nan")), "value: not from 0 to below 1"),
        (drain("eu-de", reason=" "), "reason: required, 1 to"),
        (drain("eu-de", reason="x" * 501), "reason: required, 1 to"),
        (drain("eu-de", expires_at=0.0), "expires_at: not after the beginning"),
    ],
)
def test_invalid_overrides_are_refused_with_the_reason(invalid: Override, reported: str) -> None:
    assert reported in (validation_error(invalid, POLICY) or "")


def test_what_makes_sense_has_no_flaw() -> None:
    for valid in (drain("eu-de", model=MODEL, origin="eu-es"), fail_over("eu-de"), weight("eu-de", 0.0), freeze()):
        assert validation_error(valid, POLICY) is None


def test_a_set_replaces_by_id_and_drops_expired_overrides() -> None:
    lasting, expiring = drain("eu-de"), drain("eu-es", expires_at=5.0)
    both = OverrideSet().replaced(lasting).replaced(expiring)
    assert both.replaced(lifted(lasting, "operator", 3.0)).find(lasting.id) == lifted(lasting, "operator", 3.0)
    assert both.without_ended(5.0 + RAMP_S, RAMP_S) == OverrideSet((lasting,))
    assert both.without_ended(4.9 + RAMP_S, RAMP_S) == both
    assert both.holding(5.0) == (lasting,)


def test_the_same_aim_is_the_same_kind_for_the_same_traffic() -> None:
    standing = drain("eu-de", id="first")
    assert duplicate_of([standing], drain("eu-de", id="second"), 1.0) == standing
    for different in (drain("eu-es"), fail_over("eu-de"), drain("eu-de", model=MODEL), drain("eu-de", origin="eu-es")):
        assert duplicate_of([standing], different, 1.0) is None
    assert duplicate_of([lifted(standing, "operator", 0.5)], drain("eu-de"), 1.0) is None


def test_drains_of_two_endpoints_are_no_duplicates_and_limit_no_share() -> None:
    standing = drain_endpoint("eu-de", "gpu-1", id="first")
    assert duplicate_of([standing], drain_endpoint("eu-de", "gpu-1"), 1.0) == standing
    for different in (drain_endpoint("eu-de", "gpu-2"), drain_endpoint("eu-es", "gpu-1"), drain("eu-de")):
        assert duplicate_of([standing], different, 1.0) is None
    assert standing.weight(1.0, RAMP_S) == 1.0
    assert standing.set_by(drain_endpoint("eu-de", "gpu-1", id="first", last_of=("m",)))


def test_one_that_holds_back_more_than_another_is_none_of_the_same_aim() -> None:
    standing = weight("eu-de", 0.5)
    assert duplicate_of([standing], weight("eu-de", 0.3), 1.0) is None
    assert (
        duplicate_of([standing], weight("eu-de", 0.5), 1.0)
        == duplicate_of([standing], weight("eu-de", 0.7), 1.0)
        == standing
    )
    empty = drain("eu-de", last_resort=False)
    assert duplicate_of([drain("eu-de")], empty, 1.0) is None
    assert duplicate_of([empty], drain("eu-de"), 1.0) == empty


def test_one_may_outlast_another() -> None:
    standing = drain("eu-de", id="first", expires_at=1000.0)
    assert duplicate_of([standing], drain("eu-de", expires_at=1059.0), 1.0) == standing
    assert duplicate_of([standing], drain("eu-de", expires_at=1061.0), 1.0) is None
    assert duplicate_of([standing], drain("eu-de"), 1.0) is None
    assert duplicate_of([drain("eu-de", id="first")], drain("eu-de", expires_at=1000.0), 1.0) is not None
