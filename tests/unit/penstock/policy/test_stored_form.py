"""The stored form of a policy is that of earlier releases: agents compare digests, and read last-known-good copies."""

from __future__ import annotations

from penstock.policy.kinds.models import Cost, CostUnit, Model, ModelVersions, Queueing, Scaling, Version
from penstock.policy.kinds.operations import DrillSchedule, Exercise, MaintenanceWindow, Recurrence
from penstock.policy.kinds.regions import EntryMap, Region
from penstock.policy.kinds.residency_rules import AcceptedLoss, ResidencyRule
from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from penstock.policy.kinds.tenants import Quota, Tenant
from penstock.policy.policy import Policy
from penstock.policy.service_objective import ServiceObjective
from penstock.policy.time_zone import ClockChange, TimeZone
from penstock.routes.route import CostFields, ModelLocation, ModelSource, Route, StreamKind, Timeouts, UsageFields

POLICY = Policy(
    regions={
        "eu-de": Region("eu-de", "DE", 50.11, 8.68, frozenset({"DE", "EU"}), 2.0, "Frankfurt", 0.09, 5.0, ("es",))
    },
    models={
        "m": Model(
            "m",
            cost=Cost(CostUnit.TOKEN, 0.0001, 0.01),
            service_objective=ServiceObjective(None, 0.9, 5.0),
            adapters=("m-*",),
            scaling=Scaling(max_endpoints=3),
            queueing=Queueing(max_wait_s=20.0),
        )
    },
    tenants={"t": Tenant("t", "personal", ("ab",), 1, Quota(2.5, 3, None))},
    residency=(ResidencyRule("r", client_countries=frozenset({"DE"}), allow=frozenset({"eu-de"}), source="r.yaml:3"),),
    rtt_ms={"eu-de": {"us-east": 98.0}},
    entry_maps=(EntryMap("e", frozenset({"DE"}), frozenset({"US-CA"}), ("eu-de",)),),
    spillover_limits=(SpilloverLimit("l", frozenset({"eu-de"}), max_share=0.5, source="l.yaml:3"),),
    versions={"v": ModelVersions("v", (Version("m", 100.0),))},
    accepted_losses=(AcceptedLoss("a", frozenset({"eu-de"}), "one region"),),
    maintenance=(MaintenanceWindow("w", frozenset({"eu-de"}), 1.8e9, 60.0, Recurrence.DAILY, source="w.yaml:3"),),
    drills=(DrillSchedule("d", Exercise.EVACUATE_REGION, 1.8e9, "eu-de", time_zone="Europe/Berlin"),),
    time_zones={"Europe/Berlin": TimeZone((ClockChange(0, 3600),))},
    cors_origins=frozenset({"https://app.example"}),
    routes=(
        Route(
            "r",
            "/r/{model}",
            frozenset({"PUT"}),
            (ModelLocation(ModelSource.PATH, "model"),),
            stream=StreamKind.NDJSON,
            timeouts=Timeouts(total_s=5.0),
            cost=CostFields(steps=("/steps",)),
            usage=UsageFields(request="/usage"),
            api_key_header="x-api-key",
            source="r.yaml:3",
        ),
    ),
)


def test_the_digest_of_a_policy_does_not_change_with_the_release() -> None:
    """A failure means that all fleets roll out a new digest when they are upgraded: docs/upgrading.md must say so."""
    assert POLICY.digest() == "3f6f2953c3cc2777f9855c9f1357c62023e24f5e82311652ddeac4d807b45e2e"
