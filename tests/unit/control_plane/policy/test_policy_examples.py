"""Each example bundle compiles, passes verification without a warning, and has the effect that its row states."""

from __future__ import annotations

import pytest
import yaml

from control_plane.policy.compiler import compile_bundle
from control_plane.policy.documents import read_documents
from control_plane.policy.folder import read_folder
from control_plane.policy.kinds import KINDS
from control_plane.policy.schema import schema
from penstock.dns.permitted_regions import permitted_regions
from penstock.planning.spillover_limits import bounds
from penstock.policy.entry_map import mapped
from penstock.policy.geography import Location
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, mask
from penstock.routing.reasons import Reason, Refusal
from penstock.verification.verify import verify
from penstock.what_if.assumed_demand import generated_demand, generated_fleet
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from penstock.what_if.evaluation import evaluate_demand
from tests.support.paths import POLICIES

EXAMPLES = POLICIES / "examples"
NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.is_dir())


def bundle(name: str) -> Policy:
    return compile_bundle(read_folder(EXAMPLES / name))


@pytest.mark.parametrize("name", NAMES)
def test_each_bundle_is_valid_and_serves_its_demand(name: str) -> None:
    policy = bundle(name)
    found = verify(policy)
    assert found.passed
    assert found.warnings == ()
    demand = generated_demand(policy, 50.0)
    refused = evaluate_demand(policy, demand, generated_fleet([policy], demand)).totals.refused_per_s
    assert refused.keys() <= {Reason.LOCATION_UNKNOWN, Reason.QUOTA_EXCEEDED}
    assert (Reason.QUOTA_EXCEEDED in refused) is (name == "quotas")


def test_the_smallest_bundle_fits_on_a_screen_and_equals_the_explicit_one() -> None:
    (text,) = read_folder(EXAMPLES / "smallest").values()
    assert text.count("\n") <= 35
    documents = [document.content for document in read_documents("bundle.yaml", text)[0]]
    written = {document["kind"] for document in documents}
    absent = [name for name, kind in KINDS.items() if kind.max_count == 1 and name not in written]
    documents += [{"apiVersion": "penstock/v1", "kind": name} for name in absent]
    definitions = schema()["$defs"]
    in_full = []
    for document in documents:
        fields = definitions[KINDS[document["kind"]].struct.__name__]["properties"]
        in_full.append({name: field["default"] for name, field in fields.items() if "default" in field} | document)
    assert compile_bundle({"in-full.yaml": yaml.safe_dump_all(in_full)}) == bundle("smallest")


def test_the_defaults_of_the_smallest_bundle_are_safe() -> None:
    policy = bundle("smallest")
    assert policy.anonymous_tenant is None
    assert policy.objective.survive_one_loss
    assert policy.rollout.shadow_s > 0
    assert policy.rollout.watch_s > 0
    assert policy.rollout.max_moved_share < 1
    assert policy.guard_rails.max_withdrawn_share < 1


@pytest.mark.parametrize("name", NAMES)
def test_each_file_names_its_schema_and_the_readme_lists_each_bundle(name: str) -> None:
    assert f"| `{name}` |" in (EXAMPLES / "README.md").read_text()
    for path in (EXAMPLES / name).iterdir():
        assert path.read_text().startswith("# yaml-language-server: $schema=../../schema.json\n"), path


@pytest.mark.parametrize(
    ("tenant", "location", "permitted"),
    [
        ("health", Location("FR", "IDF"), {"eu-de", "eu-fr"}),
        ("health", Location("US", "CA"), {"us-east", "us-west"}),
        ("health", Location("US", "NY"), {"eu-de", "eu-fr", "us-east", "us-west"}),
        ("health", Location("US"), None),
        ("health", Location(), None),
        ("banking", Location(), {"br-sao"}),
        ("open", Location(), {"eu-de", "eu-fr", "us-east", "us-west", "br-sao"}),
    ],
)
def test_the_residency_bundle_confines_requests(tenant: str, location: Location, permitted: set[str] | None) -> None:
    policy = bundle("residency")
    verdict = mask(policy, RequestFacts(tenant, policy.tenants[tenant].data_class, location))
    if permitted is None:
        assert isinstance(verdict, Refusal)
        assert verdict.reason is Reason.LOCATION_UNKNOWN
    else:
        assert not isinstance(verdict, Refusal)
        assert verdict.permitted.regions == permitted


def test_the_entries_bundle_orders_entry_regions() -> None:
    policy = bundle("entries")
    assert mapped(policy, Location("PE")) == ("us-west", "us-east")
    assert mapped(policy, Location("US", "HI")) == ("us-west",)
    assert mapped(policy, Location("US", "NY")) == ()
    assert policy.distance_ms("us-east", "br-sao") == policy.round_trip_ms("us-east", "br-sao") + 40


def test_the_names_of_the_dns_bundle_resolve_within_residency() -> None:
    policy = bundle("dns")
    names = policy.dns_names or {}
    assert permitted_regions(policy, names["all.api.example.com"], Location("US")) == {"eu-de", "eu-es", "us-east"}
    for name in ("all.api.example.com", "eu.api.example.com"):
        assert permitted_regions(policy, names[name]) == {"eu-de", "eu-es"}
    assert permitted_regions(policy, names["batch.api.example.com"]) == {"us-east", "eu-de"}


def test_the_quotas_bundle_limits_tenants() -> None:
    policy = bundle("quotas")
    assert policy.tenants["paying"].quota is None
    assert policy.anonymous_tenant == "trial"
    trial, batch = policy.tenants["trial"].quota, policy.tenants["batch"].quota
    assert trial is not None
    assert batch is not None
    assert (trial.requests_per_s, batch.requests_per_s, batch.concurrent) == (2.0, None, 64)


def test_the_versions_bundle_divides_requests() -> None:
    policy = bundle("versions")
    assert {version.model: version.percent for version in policy.versions["chat"].versions} == {
        "chat-2025-10": 95.0,
        "chat-2025-11": 5.0,
    }
    assert policy.models["chat-2025-11"].fallback == "chat-small"


def test_the_spillover_bundle_limits_overflow() -> None:
    policy = bundle("spillover")
    assert policy.nearest_first("us-east", frozenset(policy.regions)) == ("us-east", "eu-de", "us-west", "br-sao")
    model = "llama-3.1-8b"
    assert (bounds(policy, "eu-de", model).over_price_cap, bounds(policy, "eu-de", model).max_away) == ({"br-sao"}, 1.0)
    assert bounds(policy, "br-sao", model).max_away == 0.2
    demand = [DemandGroup("us-east", "everybody", "US", model, 30.0)]
    fleet = [Capacity(name, model, 100, 5.0) for name in policy.regions]
    servers = evaluate_demand(policy, demand, fleet).demand_outcomes[0].servers
    assert servers.keys() == {"us-east", "eu-de"}
    without_others = evaluate_demand(policy, demand, fleet, frozenset({"eu-de", "us-west"})).demand_outcomes[0]
    assert (without_others.servers.keys(), without_others.refused.keys()) == ({"us-east"}, {Reason.SATURATED})
