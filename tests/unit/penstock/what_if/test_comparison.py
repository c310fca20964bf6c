"""Both sides of a what-if have the fleet as it is: overrides, maintenance windows, lost regions."""

from __future__ import annotations

import msgspec
import pytest

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.overrides.overrides import Override
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.kinds.operations import MaintenanceWindow, Recurrence
from penstock.policy.residency import residency_class
from penstock.routing.reasons import Reason
from penstock.what_if.comparison import Comparison, Side, compare
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from penstock.what_if.growth import Growth, grown
from tests.support.override_builders import drain, fail_over, freeze, weight
from tests.support.paths import PLANET as PLANET_FOLDER

PLANET = compile_bundle(read_folder(PLANET_FOLDER))
SMALL = "llama-3.1-8b"
ROOMY = [Capacity(name, SMALL, 100, 1.0) for name in PLANET.regions]
AT_HOME = [DemandGroup("eu-de", "eu-personal", "DE", SMALL, 10.0)]
NOW = 1000.0


def compared(before: Side, after: Side, now: float | None = NOW) -> Comparison:
    return compare(before, after, AT_HOME, ROOMY, now)


def targets(found: Comparison) -> set[tuple[str, str]]:
    return {(move.source, move.target) for move in found.moves}


@pytest.mark.parametrize("override", [drain("eu-de"), fail_over("eu-de"), drain("eu-de", model=SMALL)])
def test_an_override_in_force_empties_its_region(override: Override) -> None:
    as_it_is = Side(PLANET, overrides=(override,))
    assert targets(compared(Side(PLANET), as_it_is)) == {("eu-de", "eu-es")}
    assert compared(as_it_is, as_it_is).before.load["eu-de"] == 0.0


def test_an_override_that_is_not_in_force_has_no_effect() -> None:
    ended = drain("eu-de", expires_at=NOW - 1.0)
    assert compared(Side(PLANET), Side(PLANET, overrides=(ended,))).moves == ()


def test_a_weight_limits_the_share_of_its_region() -> None:
    found = compared(Side(PLANET), Side(PLANET, overrides=(weight("eu-de", 0.25),)))
    assert targets(found) == {("eu-de", "eu-es")}
    assert found.moves[0].share == pytest.approx(0.75, abs=0.05)


def test_the_loss_of_the_other_region_of_a_class_is_seen_under_a_drain() -> None:
    drained = Side(PLANET, overrides=(fail_over("eu-es", last_resort=False),))
    found = compared(drained, msgspec.structs.replace(drained, lost=frozenset({"eu-de"})))
    assert found.after.refused_per_s == {Reason.NONE_READY: 10.0}
    last_resort = Side(PLANET, frozenset({"eu-de"}), (fail_over("eu-es"),))
    assert compared(Side(PLANET), last_resort).after.served_per_s == pytest.approx(10.0)


def test_steered_clients_enter_elsewhere_while_the_nearest_region_is_drained() -> None:
    steered = [DemandGroup("", "eu-personal", "DE", SMALL, 10.0)]
    found = compare(Side(PLANET), Side(PLANET, overrides=(drain("eu-de"),)), steered, ROOMY, NOW)
    assert targets(found) == {("eu-de", "eu-es")}
    assert found.after.round_trip_ms == found.before.round_trip_ms, "it enters at eu-es, and is not forwarded there"


def test_a_freeze_keeps_the_shares_in_force_where_it_can() -> None:
    allowed = residency_class(frozenset({"eu-de", "eu-es"})).name
    halves = tuple(Arc(name, 0.5, ArcReason.SPILLOVER) for name in ("eu-de", "eu-es"))
    plan = RegionPlan("eu-de", 7, 1, PLANET.digest(), NOW - 60.0, (ClassPlan(SMALL, allowed, halves, ()),))
    frozen = Side(PLANET, overrides=(freeze(),), plans=(plan,))
    free = msgspec.structs.replace(frozen, overrides=())
    found = compared(free, frozen)
    assert [(move.source, move.target, move.share) for move in found.moves] == [("eu-de", "eu-es", pytest.approx(0.5))]
    assert found.before.load["eu-es"] == 0.0, "without a freeze, the shares in force decide nothing"
    assert compared(free, msgspec.structs.replace(frozen, overrides=(freeze(model="other"),))).moves == ()
    lost = msgspec.structs.replace(frozen, lost=frozenset({"eu-es"}))
    assert targets(compared(frozen, lost)) == {("eu-es", "eu-de")}
    drained = msgspec.structs.replace(frozen, overrides=(freeze(), drain("eu-de")))
    assert targets(compared(frozen, drained)) == {("eu-de", "eu-es")}
    assert compared(frozen, drained).after.load["eu-de"] == 0.0


def test_a_maintenance_window_is_in_force_under_the_policy_that_has_it() -> None:
    window = MaintenanceWindow("racks", frozenset({"eu-de"}), NOW - 10.0, 3600.0, Recurrence.NEVER, 0.0)
    serviced = msgspec.structs.replace(PLANET, maintenance=(window,))
    assert targets(compared(Side(PLANET), Side(serviced))) == {("eu-de", "eu-es")}
    assert compared(Side(serviced), Side(serviced)).moves == ()
    assert compared(Side(PLANET), Side(serviced), now=None).moves == (), "an offline comparison has no time"


def test_a_region_is_lost_on_one_side_alone() -> None:
    assert targets(compared(Side(PLANET), Side(PLANET, frozenset({"eu-de"})))) == {("eu-de", "eu-es")}
    assert targets(compared(Side(PLANET, frozenset({"eu-de"})), Side(PLANET))) == {("eu-es", "eu-de")}


def test_growth_changes_the_demand_after_and_the_endpoints_that_it_needs() -> None:
    found = compare(Side(PLANET), Side(PLANET), AT_HOME, ROOMY, NOW, [Growth(15.0)])
    assert (found.before.requests_per_s, found.after.requests_per_s) == (10.0, 150.0)
    assert {(move.source, move.target) for move in found.moves} == {("eu-de", "eu-es")}, "100 slots hold 100 of 150"
    before, after = (side.needed_endpoints["eu-de"][SMALL] for side in (found.before, found.after))
    assert before < after == pytest.approx(15 * before, abs=15)
    assert compared(Side(PLANET), Side(PLANET)).before == found.before


def test_growth_multiplies_the_groups_that_match() -> None:
    demand = [*AT_HOME, DemandGroup("eu-es", "eu-personal", "ES", "other", 3.0)]
    rates = [group.requests_per_s for group in grown(demand, [Growth(2.0), Growth(1.5, model=SMALL), Growth(0.0, "x")])]
    assert rates == [30.0, 6.0]
    assert [group.requests_per_s for group in grown(demand, [Growth(4.0, origin="eu-es")])] == [10.0, 12.0]
