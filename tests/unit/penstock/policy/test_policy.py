"""A compiled policy has one digest on every machine, and the distances of its regions."""

from __future__ import annotations

import msgspec
import pytest

from penstock.policy.kinds.models import Model, Queueing
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import BATCH_PRIORITY, Batch, Tenant, Tier
from penstock.policy.policy import Policy

REGIONS = {
    "eu-de": Region("eu-de", "DE", 50.11, 8.68, frozenset({"DE", "EU"})),
    "eu-es": Region("eu-es", "ES", 40.42, -3.7, frozenset({"ES", "EU"})),
    "jp-tok": Region("jp-tok", "JP", 35.68, 139.69, frozenset({"JP"})),
}


def policy(**changes: object) -> Policy:
    whole = Policy(
        regions=REGIONS,
        models={"m": Model("m")},
        tenants={},
        residency=(ResidencyRule("r", allow=frozenset({"eu-de", "eu-es"})),),
        rtt_ms={"eu-de": {"eu-es": 29.0}},
    )
    return msgspec.structs.replace(whole, **changes)


def test_the_digest_does_not_depend_on_the_order_of_sets_and_dicts() -> None:
    backwards = {name: REGIONS[name] for name in reversed(REGIONS)}
    rule = ResidencyRule("r", allow=frozenset(["eu-es", "eu-de"]))
    assert policy(regions=backwards, residency=(rule,)).digest() == policy().digest()


@pytest.mark.parametrize(
    ("queueing", "preempts", "patience_s"),
    [
        (Queueing(), False, 0.0),
        (Queueing(preempt_batch=False, preempt_wait_percent=50.0), False, 4.0),
        (Queueing(preempt_batch=True), True, 0.0),
        (Queueing(preempt_batch=True, preempt_wait_percent=25.0), True, 2.0),
    ],
)
def test_the_preemption_of_batch_requests_is_that_of_the_model(
    queueing: Queueing, preempts: bool, patience_s: float
) -> None:
    of_models = policy(models={"m": Model("m", queueing=queueing), "n": Model("n")})
    for model, expected in (("m", (preempts, patience_s)), ("n", (False, 0.0)), ("unknown", (False, 0.0))):
        assert (of_models.preempts_batch(model), of_models.preemption_patience_s(model, 8.0)) == expected


def test_the_digest_survives_the_wire() -> None:
    assert msgspec.json.decode(msgspec.json.encode(policy()), type=Policy).digest() == policy().digest()


def test_the_digest_changes_with_the_content() -> None:
    assert policy(anonymous_tenant="open").digest() != policy().digest()


def test_a_measured_round_trip_goes_before_an_estimated_one() -> None:
    assert policy().round_trip_ms("eu-de", "eu-es") == 29.0


def test_an_unmeasured_round_trip_is_estimated_from_geography() -> None:
    assert policy().round_trip_ms("eu-es", "eu-de") == pytest.approx(24, abs=6)
    assert 120 < policy().round_trip_ms("eu-de", "jp-tok") < 250


def test_the_distance_of_home_is_zero() -> None:
    assert policy().round_trip_ms("jp-tok", "jp-tok") == 0.0


def test_nearest_first_breaks_ties_by_name() -> None:
    tied = policy(rtt_ms={"jp-tok": {"eu-de": 10.0, "eu-es": 10.0}})
    assert tied.nearest_first("jp-tok", frozenset(REGIONS)) == ("jp-tok", "eu-de", "eu-es")


def test_a_tenant_has_the_priority_of_its_tier_and_a_batch_tier_is_below_all() -> None:
    tenant = Tenant("t", "open", tier="gold")
    gold, batch = Tier("gold", "open", priority=7), Tier("gold", "open", batch=Batch())
    assert (tenant.under(gold).priority, tenant.under(gold).rules) == (7, gold)
    assert (tenant.under(batch).priority, tenant.under(batch).rules) == (BATCH_PRIORITY, batch)
