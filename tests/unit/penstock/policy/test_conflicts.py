"""Fields of a document that contradict each other: what an operator is told, and the documents beside the boundary."""

from __future__ import annotations

import re
from typing import Any, get_args

import pytest

from penstock.policy.fields import Conflict, Origin, PolicyStruct
from penstock.policy.kinds.billing import UsageStore
from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit
from penstock.policy.kinds.dns_names import DnsName, DnsStrategy, DnsZone
from penstock.policy.kinds.issuers import Issuer
from penstock.policy.kinds.jobs import JobStore
from penstock.policy.kinds.model_rollouts import HookUrl, ModelRollout
from penstock.policy.kinds.models import Model, ModelVersions, Scaling, Version
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod, WebhookUrl
from penstock.policy.kinds.operations import DrillSchedule, Exercise, MaintenanceWindow, Recurrence
from penstock.policy.kinds.region_entry import EntryUrl, RegionEntry
from penstock.policy.kinds.regions import ClientLocations, PriceHours, Region
from penstock.policy.kinds.residency_rules import RegionSelector, RequestMatch, ResidencyRuleDocument
from penstock.policy.kinds.spillover_and_failover import SpilloverLimit
from penstock.policy.kinds.tenants import Batch, Quota, Tenant, Tier
from penstock.policy.kinds.warm_up import WarmUp
from penstock.policy.service_objective import Measure, ServiceObjective

JOBS = JobStore("s", "file:///s", regions=("eu-de",))
RECORDS = UsageStore("s", "file:///s", regions=("eu-de",))
SOME_PLACES = "write `regions`, `jurisdictions`, or both"


def issuer(**fields: object) -> Issuer:
    return Issuer("i", "https://i.example", "https://i.example/keys", ("a",), **fields)  # type: ignore[arg-type]


def window(duration_s: float, recurrence: Recurrence) -> MaintenanceWindow:
    return MaintenanceWindow("w", frozenset({"eu-de"}), 0.0, duration_s, recurrence, lead_s=600.0)


def drill(exercise: Exercise, region: str | None) -> DrillSchedule:
    return DrillSchedule("d", exercise, 0.0, region)


def region(**fields: object) -> Region:
    return Region("eu-de", "DE", 50.1, 8.7, **fields)  # type: ignore[arg-type]


def budget(limit: float, scope: BudgetScope = BudgetScope.FLEET) -> Budget:
    return Budget(BudgetUnit.OUTPUT_TOKENS, limit, scope)


VALID: list[PolicyStruct] = [
    JOBS,
    JobStore("s", "file:///s", jurisdictions=("EU",), webhook_networks=("10.20.0.0/16", "fd00::/8")),
    JobStore("s", "s3://jobs/s", regions=("eu-de",), signed_urls_s=60),
    RECORDS,
    UsageStore("s", "file:///s", jurisdictions=("EU",)),
    DnsName("n", strategy=DnsStrategy.FAILOVER, failover_order=("eu-de",)),
    DnsName("n", strategy=DnsStrategy.NEAREST),
    DnsZone("example.net", {"ns1.example.com": (), "ns.example.net": ("192.0.2.1",), "notexample.net": ()}, "a.b"),
    issuer(tier="gold"),
    issuer(tenants=("a",)),
    issuer(tier_claim="t", tiers=("gold",)),
    ModelRollout("m", "v", (5.0, 5.1), opt_in_tenants=("a",), excluded_tenants=("b",)),
    Scaling(min_endpoints=3, max_endpoints=3),
    Model("m", expected_revision="a"),
    Model("m", expected_revision="a", refuse_skewed=True),
    ModelVersions("m", (Version("a", 100.0 / 3), Version("b", 200.0 / 3), Version("c", 0.0))),
    OnDemand(WakeMethod.WEBHOOK, webhook="https://w.example"),
    OnDemand(WakeMethod.VLLM),
    window(86_400 - 601, Recurrence.DAILY),
    window(7 * 86_400 - 601, Recurrence.WEEKLY),
    window(7 * 86_400, Recurrence.NEVER),
    drill(Exercise.EVACUATE_REGION, "eu-de"),
    drill(Exercise.STEP_DOWN, None),
    RegionEntry(url="https://e.example"),
    RegionEntry(addresses=("192.0.2.1",)),
    RegionEntry(cname="e.example"),
    region(),
    region(price_time_zone="Europe/Berlin", price_hours=(PriceHours(1.0, 22, 6),)),
    ClientLocations(countries=("DE",)),
    ClientLocations(subdivisions=("US-CA",)),
    RegionSelector(regions=("eu-de",)),
    RegionSelector(jurisdictions=("EU",)),
    ResidencyRuleDocument("r", RequestMatch(), allow=RegionSelector(regions=("eu-de",))),
    ResidencyRuleDocument("r", RequestMatch(), deny=RegionSelector(regions=("eu-de",))),
    SpilloverLimit("l", max_share=0.0),
    SpilloverLimit("l", max_cost_per_gpu_hour=0.0),
    Quota(1.0, 2, None),
    Quota(None, None, 1),
    Tier("t", "open", batch=Batch()),
    Tier("t", "open", priority=3, budgets=(budget(1.0), budget(1.0, BudgetScope.REGION))),
    Tenant("t", "open", tier="gold"),
    Tenant("t", "open", priority=3),
    WarmUp(),
    WarmUp(body='{"a": "{model}"}'),
    ServiceObjective(1.0, 0.9),
    ServiceObjective(None, 0.9, 1.0),
]


@pytest.mark.parametrize("document", VALID, ids=lambda document: type(document).__name__)
def test_fields_that_agree(document: PolicyStruct) -> None:
    assert document.conflict() is None


@pytest.mark.parametrize(
    ("document", "problem", "remedy"),
    [
        (JobStore("s", "file:///s"), "holds the jobs of no region", SOME_PLACES),
        (
            JobStore("s", "file:///s", regions=("eu-de",), signed_urls_s=60),
            "has `signed_urls_s`, and a folder signs no URLs",
            "remove it, or use a bucket",
        ),
        (UsageStore("s", "file:///s"), "holds the records of no region", SOME_PLACES),
        (DnsName("n", strategy=DnsStrategy.FAILOVER), "has no order of its regions",
         "write `failover_order`, the primary first"),
        (DnsName("n", failover_order=("eu-de",)), "`failover_order` has no effect",
         "write `strategy: failover`, or remove it"),
        (DnsZone("example.net", {}, "a.b"), "has no name servers", "write `name_servers`, such as ns1.example.net: []"),
        (DnsZone("example.net", {"other.example": (), "ns.example.net": ()}, "a.b"),
         "the name server ns.example.net is in the zone and has no address", "write its addresses"),
        (issuer(), "gives its tenants no tier", "write `tier`, or `tier_claim` and `tiers`, or `tenants`"),
        (issuer(tier="gold", tier_claim="t"), "has a claim of tiers without tiers, or the reverse",
         "write `tier_claim` and `tiers`"),
        (issuer(tiers=("gold",)), "has a claim of tiers without tiers, or the reverse",
         "write `tier_claim` and `tiers`"),
        (ModelRollout("m", "v", (5.0, 25.0, 25.0)), "steps do not rise",
         "write rising percentages, such as [5, 25, 100]"),
        (ModelRollout("m", "v", opt_in_tenants=("a", "b"), excluded_tenants=("b",)),
         "a tenant opts in and is excluded", "remove it from one of the lists"),
        (Scaling(min_endpoints=4, max_endpoints=3), "max_endpoints is below min_endpoints", "raise max_endpoints"),
        (Model("m", refuse_skewed=True), "refuse_skewed without expected_revision",
         "add expected_revision, or remove refuse_skewed"),
        (ModelVersions("m", (Version("a", 50.0), Version("b", 49.0))), "the percentages do not sum to 100",
         "write 0 for a version without traffic"),
        (ModelVersions("m", (Version("a", 50.0), Version("a", 50.0))), "names a model twice",
         "write each version once"),
        (OnDemand(WakeMethod.WEBHOOK), "wake: webhook without a webhook", "add webhook"),
        (OnDemand(WakeMethod.VLLM, webhook="https://w.example"), "wake: vllm with a webhook",
         "remove webhook, or write wake: webhook"),
        (window(86_400 - 600, Recurrence.DAILY), "the window never closes",
         "make the sum of lead_s and duration_s shorter than the recurrence"),
        (window(7 * 86_400 - 600, Recurrence.WEEKLY), "the window never closes",
         "make the sum of lead_s and duration_s shorter than the recurrence"),
        (drill(Exercise.EVACUATE_REGION, None), "exercise and region do not match",
         "write region for evacuate_region, and for no other exercise"),
        (drill(Exercise.STEP_DOWN, "eu-de"), "exercise and region do not match",
         "write region for evacuate_region, and for no other exercise"),
        (RegionEntry(addresses=("192.0.2.1",), cname="e.example"), "has `addresses` and `cname`",
         "keep one of them: a name with a CNAME has no other records"),
        (RegionEntry(), "states no entry", "write `url`, `addresses` or `cname`"),
        (region(price_time_zone="Europe/Berlin"), "price_time_zone without price_hours",
         "add price_hours, or remove price_time_zone"),
        (ClientLocations(), "selects no clients", "write `countries`, `subdivisions`, or both"),
        (RegionSelector(), "selects no region", SOME_PLACES),
        (ResidencyRuleDocument("r", RequestMatch()), "the rule has no effect", "write `allow`, `deny`, or both"),
        (SpilloverLimit("l"), "limits nothing", "give a number for one of max_cost_per_gpu_hour and max_share"),
        (Quota(None, None, None), "limits nothing", "write requests_per_s or concurrent, or remove the quota"),
        (Tier("t", "open", priority=1, batch=Batch()), "has a priority besides `batch`",
         "remove one of them: batch is below all priorities"),
        (Tier("t", "open", budgets=(budget(1.0), budget(2.0))),
         "has two budgets of output_tokens_per_minute for the fleet", "keep the smaller one"),
        (Tier("t", "open", budgets=(Budget(BudgetUnit.CONCURRENT_REQUESTS, 0.5),)),
         "permits 0.5 concurrent_requests, so that none runs", "write at least 1"),
        (Tenant("t", "open", priority=1, tier="gold"), "has a priority besides a tier",
         "remove the priority, which the tier sets, or the tier"),
        (ServiceObjective(None, 0.9), "sets no limit",
         "write first_byte_s for streams, or total_s for other responses"),
    ],
)  # fmt: skip
def test_fields_that_contradict_each_other(document: PolicyStruct, problem: str, remedy: str) -> None:
    assert document.conflict() == Conflict(problem, remedy)


@pytest.mark.parametrize("network", ["10.0.0.1/8", "10.0.0.0/33", "all"])
def test_networks_of_webhooks_are_networks(network: str) -> None:
    store = JobStore("s", "file:///s", regions=("eu-de",), webhook_networks=("10.20.0.0/16", network))
    conflict = store.conflict()
    assert conflict is not None
    assert conflict.problem.startswith(f"has '{network}' in `webhook_networks`: ")
    assert conflict.remedy == "write networks such as 10.20.0.0/16"


def test_the_body_of_a_warm_up_is_json_with_the_name_of_the_model() -> None:
    assert WarmUp(body='{"m": "{model}/{model}"}').body_for('a"b') == b'{"m": "a\\"b/a\\"b"}'
    assert WarmUp(body="{}").body_for("m") == b"{}"
    conflict = WarmUp(body='{"m": {model}}').conflict()
    assert conflict is not None
    assert (conflict.problem.startswith("body is no JSON: "), conflict.remedy) == (True, "correct body")


def test_limits_of_an_objective_by_measure() -> None:
    assert ServiceObjective(1.0, 0.9, 2.0).limits_s == {Measure.FIRST_BYTE: 1.0, Measure.TOTAL: 2.0}
    assert ServiceObjective(None, 0.9, 2.0).limits_s == {Measure.TOTAL: 2.0}


@pytest.mark.parametrize("url", [EntryUrl, HookUrl, Origin, WebhookUrl])
def test_ports_of_urls_are_ports(url: Any) -> None:
    regex = re.compile(get_args(url)[1].extra_json_schema["pattern"])
    for port in (1, 80, 999, 8443, 10_000, 49_152, 59_999, 64_999, 65_499, 65_529, 65_535):
        assert regex.match(f"https://host.example:{port}"), port
    for text in ("0", "080", "65536", "65540", "65600", "66000", "70000", "99999", "100000"):
        assert not regex.match(f"https://host.example:{text}"), text
