from math import nan

import msgspec
import pytest

from penstock.planning.acceptance import refuse_plan, refuse_policy
from penstock.planning.plan import Arc, ArcReason, ClassPlan, FailoverTable, RegionPlan, VersionShare
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy

SHARE_SUM_SLACK = 0.01
"""As documented, and not imported: a test fails if a tuned constant changes."""

POLICY = Policy(
    regions={name: Region(name, "DE", 50.0, 8.0) for name in ("here", "there")},
    models={"m": Model("m")},
    tenants={},
    residency=(),
)


def plan(*arcs: Arc, fallbacks: tuple[str, ...] = ()) -> RegionPlan:
    return RegionPlan("here", 4, 7, POLICY.digest(), 0.0, (ClassPlan("m", "here+there", arcs, fallbacks),))


def arc(server: str, share: float) -> Arc:
    return Arc(server, share, ArcReason.HOME)


def detoured(*arcs: Arc) -> RegionPlan:
    good = plan(arc("here", 1.0))
    return msgspec.structs.replace(
        good, classes=(msgspec.structs.replace(good.classes[0], failover_tables=(FailoverTable("here", arcs),)),)
    )


@pytest.mark.parametrize("field", ["percent", "shadow_percent", "next_percent"])
def test_the_shares_of_versions_are_from_0_to_100(field: str) -> None:
    for percent, is_valid in ((0.0, True), (0.5, True), (100.0, True), (-0.1, False), (100.1, False), (nan, False)):
        share = msgspec.structs.replace(VersionShare("m", "next", 0.0), **{field: percent})
        found = refuse_plan(msgspec.structs.replace(plan(), version_shares=(share,)), POLICY, "here", None) or ""
        assert ("the share of next is not between 0 and 100" in found) is not is_valid


def test_a_policy_matches_its_digest_and_has_the_region() -> None:
    assert refuse_policy(POLICY, POLICY.digest(), "here") is None
    assert "has the content of" in (refuse_policy(POLICY, "0" * 64, "here") or "")
    assert "has no region elsewhere" in (refuse_policy(POLICY, POLICY.digest(), "elsewhere") or "")


def test_a_good_plan_is_taken_over_none_older_generations_and_older_epochs() -> None:
    good = plan(arc("here", 0.7), arc("there", 0.3))
    older = msgspec.structs.replace(good, generation=3)
    lower_epoch = msgspec.structs.replace(good, epoch=6, generation=99)
    for in_force in (None, older, lower_epoch):
        assert refuse_plan(good, POLICY, "here", in_force) is None
    for late in (older, lower_epoch, good):
        assert "does not supersede plan 7/4" in (refuse_plan(late, POLICY, "here", good) or "")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (msgspec.structs.replace(plan(), region="there"), "is for region there"),
        (plan(arc("mars", 1.0)), "no region mars"),
        (plan(arc("here", 1.0), fallbacks=("venus",)), "no region venus"),
        (detoured(arc("venus", 1.0)), "no region venus"),
        (detoured(arc("there", 2.0)), "not between 0 and 1"),
        (plan(arc("here", 0.5), arc("here", 0.5)), "two arcs"),
        (plan(arc("here", -0.5), arc("there", 1.5)), "not between 0 and 1"),
        (plan(arc("here", float("nan"))), "not between 0 and 1"),
        (plan(arc("here", 0.2)), "do not sum to 1"),
        (msgspec.structs.replace(plan(), ramp=1.5), "the ramp is not between 0 and 1"),
        (msgspec.structs.replace(plan(), ramp=float("nan")), "the ramp is not between 0 and 1"),
    ],
)
def test_bad_plans_are_refused_with_the_reason(bad: RegionPlan, message: str) -> None:
    assert message in (refuse_plan(bad, POLICY, "here", None) or "")


def test_a_class_without_arcs_is_taken() -> None:
    assert refuse_plan(plan(), POLICY, "here", None) is None


@pytest.mark.parametrize(
    "good",
    [
        plan(arc("here", 0.5), arc("there", 0.5 + 0.9 * SHARE_SUM_SLACK)),
        plan(arc("here", 0.5), arc("there", 0.5 - 0.9 * SHARE_SUM_SLACK)),
        plan(arc("here", 1.0 + 0.9 * SHARE_SUM_SLACK)),
        plan(arc("here", 0.0), arc("there", 1.0)),
        detoured(arc("there", 0.0)),
        detoured(arc("there", 0.4)),
        msgspec.structs.replace(plan(), ramp=0.0),
        msgspec.structs.replace(plan(), ramp=1.0),
    ],
)
def test_plans_within_the_bounds_are_accepted(good: RegionPlan) -> None:
    assert refuse_plan(good, POLICY, "here", None) is None


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            plan(arc("here", 0.5), arc("there", 0.5 + 1.1 * SHARE_SUM_SLACK)),
            "plan 7/4, class m/here+there: shares do not sum to 1",
        ),
        (
            plan(arc("here", 0.5), arc("there", 0.5 - 1.1 * SHARE_SUM_SLACK)),
            "plan 7/4, class m/here+there: shares do not sum to 1",
        ),
        (detoured(arc("there", -0.1)), "plan 7/4, class m/here+there: a share is not between 0 and 1"),
        (detoured(arc("there", float("inf"))), "plan 7/4, class m/here+there: a share is not between 0 and 1"),
        (
            plan(arc("mars", 0.5), arc("luna", 0.5)),
            f"plan 7/4, class m/here+there: no region luna, mars in policy {POLICY.digest()[:12]}",
        ),
        (msgspec.structs.replace(plan(), ramp=-0.1), "plan 7/4: the ramp is not between 0 and 1"),
    ],
)
def test_plans_beyond_the_bounds_are_refused(bad: RegionPlan, message: str) -> None:
    assert refuse_plan(bad, POLICY, "here", None) == message


def test_messages_name_policies_by_the_beginning_of_their_digest() -> None:
    digest = POLICY.digest()
    assert refuse_policy(POLICY, "0" * 64, "here") == f"policy {'0' * 12} has the content of {digest[:12]}"
    assert refuse_policy(POLICY, digest, "elsewhere") == f"policy {digest[:12]} has no region elsewhere"
