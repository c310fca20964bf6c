"""What of a plan in force stays: entries whose model and regions the policy still has."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.planning.linear_program.problem import Pool
from penstock.planning.linear_program.problem_builder import _held
from penstock.planning.plan import Arc, ArcReason, ClassPlan, FailoverTable, RegionPlan
from penstock.planning.plan_slices import _not_reduced, _still_valid
from penstock.planning.share_moves import Key
from tests.support.planet import MODEL, policy


def arc(server: str, share: float = 1.0) -> Arc:
    return Arc(server, share, ArcReason.HOME)


def test_entries_of_a_region_that_does_not_report_lose_what_the_policy_no_longer_has() -> None:
    tables = (FailoverTable("eu-de", (arc("eu-es"),)), FailoverTable("eu-de", (arc("gone"),)))
    kept = ClassPlan(MODEL, "all", (arc("eu-de"),), ("gone", "us-east"), tables)
    other_model = ClassPlan("gone", "all", (arc("eu-de"),), ())
    to_another = ClassPlan(MODEL, "eu", (arc("eu-de", 0.5), arc("gone", 0.5)), ())
    before = RegionPlan("eu-de", 1, 1, "digest", 0.0, (kept, other_model, to_another))
    assert _still_valid(before, policy()) == [ClassPlan(MODEL, "all", (arc("eu-de"),), ("us-east",), tables[:1])]
    assert _still_valid(None, policy()) == []


def test_a_ramp_takes_nothing_from_a_region_whose_drain_ended_before_it_was_empty() -> None:
    ramps, current = {"a": 0.2, "b": 0.3, "c": 0.9}, {"a": 0.5, "b": 0.5, "c": 0.1}
    assert _not_reduced(ramps, current, frozenset()) == ramps
    assert _not_reduced(ramps, current, frozenset({"a", "c", "gone"})) == {"a": 0.5, "b": 0.3, "c": 0.9}
    assert _not_reduced(ramps, {}, frozenset({"a"})) == ramps


def test_the_planner_keeps_the_shares_of_regions_that_still_have_the_model() -> None:
    keys = [Key("a", "m", "new"), Key("a", "m", "all"), Key("b", "m", "all")]
    shape = SimpleNamespace(keys=keys, pools=[Pool("a", "m"), Pool("b", "m")])
    before = {
        keys[1]: ClassPlan("m", "all", (arc("a", 0.75), arc("c", 0.0), arc("b", 0.25)), ()),
        keys[2]: ClassPlan("m", "all", (arc("gone"), arc("b", 0.0)), ()),
    }
    held = _held(shape, before)  # type: ignore[arg-type]
    assert held.planned.tolist() == [False, True, True]
    assert (held.key.tolist(), held.pool.tolist(), held.share.tolist()) == ([1, 1], [0, 1], [0.75, 0.25])
