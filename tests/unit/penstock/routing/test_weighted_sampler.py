"""The prepared draw from a plan's shares: its choices, their weights, and where it applies."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, Closed, RegionPlan
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, residency_class
from penstock.routing.decision import Decision, decide
from penstock.routing.region_selection import RegionRequest, RegionView
from penstock.routing.session_home import home_of
from penstock.routing.weighted_sampler import WeightedSampler, accepts_full_share, sampler_of, samplers_of


def entry(model: str = "m", residency: str = "r", **shares: float) -> ClassPlan:
    reasons = {"home": ArcReason.HOME}
    arcs = tuple(Arc(name, share, reasons.get(name, ArcReason.SPILLOVER)) for name, share in shares.items())
    return ClassPlan(model, residency, arcs, ())


def sampler(**shares: float) -> WeightedSampler:
    found = sampler_of(entry(**shares), "home")
    assert found is not None
    return found


class Drawn(Random):
    """Returns one number."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.number = number

    def random(self) -> float:
        return self.number


def test_choices_have_the_plans_shares_and_reasons_and_spend_no_credit() -> None:
    found = sampler(home=0.5, a=0.3, b=0.2)
    assert [(choice.region, choice.why) for choice in found.choices] == [
        ("home", ArcReason.HOME),
        ("a", ArcReason.SPILLOVER),
        ("b", ArcReason.SPILLOVER),
    ]
    assert [choice.spends_credit for choice in found.choices] == [False] * 3
    assert found.cumulative == pytest.approx((0.5, 0.8, 1.0))
    assert found.shares == pytest.approx({"home": 0.5, "a": 0.3, "b": 0.2})


@pytest.mark.parametrize(
    ("number", "region"),
    [(0.0, "home"), (0.49, "home"), (0.51, "a"), (0.79, "a"), (0.81, "b"), (0.9999999, "b"), (1.0, "b")],
)
def test_a_number_selects_the_region_whose_part_it_is_in(number: float, region: str) -> None:
    assert sampler(home=0.5, a=0.3, b=0.2).sample(Drawn(number)).region == region


def test_a_session_goes_to_its_home() -> None:
    found = sampler(home=0.5, a=0.5)
    for session in range(20):
        assert found.sample(Drawn(0.9), session).region == home_of(session, {"home": 0.5, "a": 0.5})
    assert {found.sample(Drawn(0.9), session).region for session in range(20)} == {"home", "a"}
    assert sampler(a=1.0).sample(Drawn(0.5), 7).region == "a"


def test_arcs_without_a_share_are_no_choices() -> None:
    found = sampler(home=0.0, a=1.0)
    assert [choice.region for choice in found.choices] == ["a"]
    assert (found.remote, found.includes_home) == ({"a"}, False)
    assert sampler_of(entry(), "home") is None
    assert sampler_of(entry(home=0.0), "home") is None


def test_remote_regions_must_be_permitted_and_home_was_checked_before() -> None:
    found = sampler(home=0.5, a=0.3, b=0.2)
    assert (found.remote, found.includes_home) == ({"a", "b"}, True)
    assert found.within(residency_class(frozenset({"a", "b"})))
    assert found.within(residency_class(frozenset({"home", "a", "b", "c"})))
    assert not found.within(residency_class(frozenset({"home", "a"})))


def test_of_two_entries_for_a_class_the_first_counts_and_empty_ones_have_no_sampler() -> None:
    plan = RegionPlan(
        "home", 1, 1, "digest", 0.0, (entry(home=1.0), entry(a=1.0), entry("other", b=1.0), entry("none"))
    )
    found = samplers_of(plan)
    of_plan = {key: list(one.shares) for key, one in found.items() if key[1] == "r"}
    assert of_plan == {("m", "r"): ["home"], ("other", "r"): ["b"]}
    assert found["m", "r"].includes_home


@pytest.mark.parametrize("ramp", [1.0, 0.2, 0.0])
@pytest.mark.parametrize(
    "class_plan",
    [None, entry("m", "home"), entry("m", "home", home=0.0), entry("m", "home", home=1.0)],
    ids=["no entry", "no arc", "no share", "home"],
)
@pytest.mark.parametrize(
    "closed", [None, Closed("home", "m", last_resort=True), Closed("home", "m", last_resort=False)]
)
def test_a_class_of_home_alone_has_the_choice_that_decide_makes(
    ramp: float, class_plan: ClassPlan | None, closed: Closed | None
) -> None:
    policy = Policy(
        regions={name: Region(name, "DE", 50.0, 8.0) for name in ("home", "a")},
        models={"m": Model("m")},
        tenants={},
        residency=(),
    )
    here = residency_class(frozenset({"home"}))
    classes = (entry("m", "a+home", a=1.0), *([] if class_plan is None else [class_plan]))
    plan = RegionPlan("home", 1, 1, "digest", 0.0, classes, ramp, closed=() if closed is None else (closed,))
    views = {"home": RegionView(RegionState.HEALTHY, ready=True)}
    request = RegionRequest("home", "m", here)
    decision = decide(policy, plan, Mask(here), request, views, Random(1))
    found = samplers_of(plan).get(("m", "home"))
    if found is not None:
        assert isinstance(decision, Decision)
        assert (found.choices, found.remote, found.includes_home) == ((decision.choice,), frozenset(), True)
    assert (found is None) == (closed is not None and (class_plan is None or sampler_of(class_plan, "home") is None))


@pytest.mark.parametrize(
    ("changed", "accepts"),
    [
        ({}, True),
        ({"ready": False}, False),
        ({"weight": 0.99}, False),
        ({"state": RegionState.FAILED}, False),
        ({"state": RegionState.DEGRADED}, True),
    ],
)
def test_a_region_accepts_its_full_share_if_it_is_ready_usable_and_on_no_ramp(
    changed: dict[str, object], accepts: bool
) -> None:
    view = RegionView(RegionState.HEALTHY, ready=True)
    assert accepts_full_share(msgspec.structs.replace(view, **changed) if changed else view) == accepts
