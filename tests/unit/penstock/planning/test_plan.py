"""Lookup of classes in a plan, and which plan a plan may replace."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan, VersionShare
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.policy import Policy

ARC = Arc("eu-de", 1.0, ArcReason.HOME)


def plan(epoch: int = 5, generation: int = 7, classes: tuple[ClassPlan, ...] = ()) -> RegionPlan:
    return RegionPlan("eu-de", generation, epoch, "digest", 0.0, classes)


def test_a_class_is_found_by_model_and_residency() -> None:
    wanted = ClassPlan("m", "eu-de", (ARC,), ())
    held = plan(classes=(ClassPlan("m", "eu-es", (ARC,), ()), ClassPlan("n", "eu-de", (ARC,), ()), wanted))
    assert held.lookup("m", "eu-de") is wanted
    assert held.lookup("m", "us-east") is None


def test_any_plan_replaces_none() -> None:
    assert plan().supersedes(None)


def test_a_newer_generation_replaces_an_older_one() -> None:
    assert plan(generation=8).supersedes(plan())
    assert not plan().supersedes(plan(generation=8))
    assert not plan().supersedes(plan())


def test_a_former_leaders_plan_never_replaces_its_successors() -> None:
    assert not plan(epoch=4, generation=99).supersedes(plan())
    assert plan(epoch=6, generation=1).supersedes(plan())


def test_a_share_applies_to_the_rollout_that_it_is_of() -> None:
    share = VersionShare("m", "v2", 10.0)
    held = replace(plan(), version_shares=(VersionShare("n", "v9", 50.0), share))
    policy = Policy({}, {}, {}, ())
    assert held.version_share(policy, "m") is None
    for to, found in (("v2", share), ("v3", None)):
        under = replace(policy, model_rollouts={"m": ModelRollout("m", to, (10.0,))})
        assert held.version_share(under, "m") is found
        assert held.version_share(under, "n") is None
