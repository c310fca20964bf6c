"""A bundle is compiled as a whole, and the policy has the fields of each document."""

# A row of a table of messages is one line.
# ruff: noqa: E501

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from control_plane.policy import references
from control_plane.policy.compiler import compile_bundle, compile_revision
from penstock.policy.geography import BLOCS, COUNTRIES
from penstock.policy.kinds.models import Cost, CostUnit, ModelVersions, Version
from penstock.policy.kinds.regions import EntryMap
from penstock.policy.kinds.tenants import Quota
from penstock.policy.policy import Policy
from penstock.policy.service_objective import ServiceObjective
from tests.support.policy_bundle import BUNDLE, DIGEST, changed, refused

VERSIONS = """\
apiVersion: penstock/v1
kind: Model
name: llama-next
expected_service_s: 5
request_bytes: 4000
response_bytes: 4000
cost: {unit: token, input_unit_s: 0.0001, output_unit_s: 0.01}
service_objective: null
fallback: llama-3.1-8b
---
apiVersion: penstock/v1
kind: ModelVersions
name: llama
description: A canary.
versions:
  - {model: llama-3.1-8b, percent: 90}
  - {model: llama-next, percent: 10}
"""

EXTRA = """\
---
apiVersion: penstock/v1
kind: Model
name: llama-next
expected_service_s: 5
request_bytes: 4000
response_bytes: 4000
cost: {unit: token, input_unit_s: 0.0001, output_unit_s: 0.01}
fallback: null
service_objective: null
"""


def test_blocs_are_expanded_to_countries_and_regions() -> None:
    policy = compile_bundle(BUNDLE)
    (rule,) = policy.residency
    assert rule.client_countries == {"DE", "ES", "NO"}
    assert rule.allow == {"eu-de"}
    assert policy.regions["eu-de"].jurisdictions == {"DE", "EU", "EEA"}
    assert policy.regions["us-east"].jurisdictions == {"US"}


def test_a_built_in_bloc_needs_no_document_and_a_bloc_of_the_bundle_takes_precedence() -> None:
    without = BUNDLE | {"places.yaml": BUNDLE["places.yaml"].partition("---\napiVersion: penstock/v1\nkind: Bloc")[0]}
    policy = compile_bundle(without)
    (rule,) = policy.residency
    assert rule.client_countries == BLOCS["EEA"]
    assert rule.allow == {"eu-de"}
    assert policy.regions["eu-de"].jurisdictions == {"DE", "EU", "EEA"}
    own = without | {"blocs.yaml": "apiVersion: penstock/v1\nkind: Bloc\nname: EU\nmembers: [US]\n"}
    policy = compile_bundle(own)
    (rule,) = policy.residency
    assert rule.allow == {"us-east"}
    assert rule.client_countries == BLOCS["EEA"], "the definition of one bloc changes no other built-in one"
    error = "blocs.yaml:4: members[0]: XX is not a country or bloc"
    assert any(error in each for each in refused({**own, "blocs.yaml": own["blocs.yaml"].replace("US", "XX")}))


def test_blocs_that_a_bundle_does_not_use_leave_its_digest_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compile_bundle(BUNDLE).digest()
    monkeypatch.setattr(references, "BLOCS", {"DACH": frozenset({"DE"})})
    assert compile_bundle(BUNDLE).digest() == before


def test_built_in_blocs_have_only_countries() -> None:
    assert frozenset().union(*BLOCS.values()) <= COUNTRIES
    assert not BLOCS.keys() & COUNTRIES
    assert len(BLOCS["EU"]) == 27


def test_an_entry_map_expands_blocs_and_keeps_the_order_of_its_regions() -> None:
    text = """\
apiVersion: penstock/v1
kind: EntryMap
name: nordic
description: Cables run that way.
clients: {countries: [EEA], subdivisions: [US-CA]}
regions: [us-east, eu-de]
"""
    (entry_map,) = compile_bundle(BUNDLE | {"maps.yaml": text}).entry_maps
    assert entry_map == EntryMap("nordic", frozenset({"DE", "ES", "NO"}), frozenset({"US-CA"}), ("us-east", "eu-de"))
    errors = refused(BUNDLE | {"maps.yaml": text.replace("eu-de", "eu-du").replace("EEA", "UK")})
    assert "maps.yaml:6: regions[1]: there is no Region eu-du; did you mean eu-de?" in errors
    assert any("maps.yaml:5: clients.countries[0]: UK is not a country" in error for error in errors)


def test_a_quota_is_compiled() -> None:
    assert compile_bundle(BUNDLE).tenants["one"].quota == Quota(5.0, 10, None)
    unlimited = changed("senders.yaml", "{requests_per_s: 5.0, burst_requests: 10, concurrent: null}", "null")
    assert compile_bundle(unlimited).tenants["one"].quota is None


TIER = """\
apiVersion: penstock/v1
kind: Tier
name: gold
data_class: personal
priority: 3
weight: 2
models: [llama-*]
budgets:
  - {unit: output_tokens_per_minute, limit: 100000}
"""


def with_tier(old: str, new: str) -> dict[str, str]:
    """A bundle whose tenant `one` has the tier `gold`, with one change."""
    sender = changed("senders.yaml", "priority: 0", "tier: gold")["senders.yaml"]
    return BUNDLE | {"tiers.yaml": TIER, "senders.yaml": sender.replace(old, new)}


def test_a_tenant_has_the_rules_of_its_tier_besides_its_quota() -> None:
    policy = compile_bundle(with_tier("", ""))
    tenant = policy.tenants["one"]
    assert policy.tier("gold") == tenant.rules
    assert (tenant.priority, tenant.weight, tenant.models) == (3, 2.0, ("llama-*",))
    assert [budget.unit for budget in tenant.budgets] == ["requests_per_minute", "output_tokens_per_minute"]


def test_contradictions_of_tiers_are_refused() -> None:
    twice = "  - {unit: output_tokens_per_minute, limit: 5}\n"
    assert "tiers.yaml:1: has two budgets of output_tokens_per_minute for the fleet; keep the smaller one" in refused(
        BUNDLE | {"tiers.yaml": TIER + twice}
    )
    both = refused(with_tier("tier: gold", "tier: gold\npriority: 10"))
    assert [error for error in both if "has a priority besides a tier" in error]
    unknown = refused(with_tier("tier: gold", "tier: golden"))
    assert [error for error in unknown if "there is no Tier golden; did you mean gold?" in error]


def test_versions_of_a_model_are_compiled() -> None:
    policy = compile_bundle(BUNDLE | {"versions.yaml": VERSIONS})
    assert policy.versions == {
        "llama": ModelVersions("llama", (Version("llama-3.1-8b", 90.0), Version("llama-next", 10.0)))
    }
    assert policy.models["llama-next"].fallback == "llama-3.1-8b"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (
            "percent: 10",
            "percent: 20",
            "versions.yaml:11: the percentages do not sum to 100; write 0 for a version without traffic",
        ),
        (
            "llama-next, percent",
            "llama-nxt, percent",
            "versions.yaml:17: versions[1].model: there is no Model llama-nxt; did you mean llama-next?",
        ),
        (
            "llama-next, percent",
            "llama-3.1-8b, percent",
            "versions.yaml:11: names a model twice; write each version once",
        ),
        (
            "fallback: llama-3.1-8b",
            "fallback: llama-next",
            "versions.yaml:9: fallback: llama-next falls back to itself; let the lightest have `fallback: null`",
        ),
        (
            "fallback: llama-3.1-8b",
            "fallback: none",
            "versions.yaml:9: fallback: there is no Model none; use one of llama-3.1-8b, llama-next",
        ),
        ("name: llama\ndesc", "name: llama-next\ndesc", None),
        (
            "llama-next, percent: 10}",
            "llama-3.1-8b, percent: 10}",
            "versions.yaml:11: names a model twice; write each version once",
        ),
    ],
)
def test_invalid_versions_are_refused(old: str, new: str, error: str | None) -> None:
    assert VERSIONS.count(old) == 1
    files = BUNDLE | {"versions.yaml": VERSIONS.replace(old, new)}
    if error is None:
        assert compile_bundle(files).versions
    else:
        assert error in refused(files)


def test_a_name_for_versions_must_not_hide_a_model() -> None:
    text = VERSIONS.replace("name: llama\n", "name: llama-next\n").replace("model: llama-next", "model: llama-3")
    text = text.replace("kind: Model\nname: llama-next", "kind: Model\nname: llama-3") + EXTRA
    error = "versions.yaml:13: name: hides the model llama-next, which clients could not request any more; "
    assert any(message.startswith(error) for message in refused(BUNDLE | {"versions.yaml": text}))


def test_a_service_objective_is_compiled() -> None:
    assert compile_bundle(BUNDLE).models["llama-3.1-8b"].service_objective is None
    text = "service_objective: {first_byte_s: 1.5, share: 0.99}"
    policy = compile_bundle(changed("serving.yaml", "service_objective: null", text))
    assert policy.models["llama-3.1-8b"].service_objective == ServiceObjective(1.5, 0.99)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{first_byte_s: 1.5, share: 99}", "serving.yaml:9: service_objective.share: "),
        ("{first_byte_s: 1.5, share: 1}", "serving.yaml:9: service_objective.share: "),
        ("{first_byte_s: 0, share: 0.99}", "serving.yaml:9: service_objective.first_byte_s: "),
        ("{share: 0.99}", "serving.yaml:9: service_objective: "),
        ("0.99", "serving.yaml:9: service_objective: "),
    ],
)
def test_invalid_service_objectives_are_refused(text: str, error: str) -> None:
    said = refused(changed("serving.yaml", "service_objective: null", f"service_objective: {text}"))
    assert [message.startswith(error) and "; " in message for message in said] == [True], said


@pytest.mark.parametrize(
    ("starts_at", "zone", "utc"),
    [
        ("2026-12-01T02:00", "Europe/Berlin", "2026-12-01T01:00:00+00:00"),
        ("2026-07-01T02:00", "Europe/Berlin", "2026-07-01T00:00:00+00:00"),
        ("2026-10-25T02:30", "Europe/Berlin", "2026-10-25T00:30:00+00:00"),
        ("2026-07-01T02:00", "Asia/Kathmandu", "2026-06-30T20:15:00+00:00"),
        ("2026-07-01T02:00", "UTC", "2026-07-01T02:00:00+00:00"),
    ],
)
def test_a_window_in_a_time_zone_is_compiled(starts_at: str, zone: str, utc: str) -> None:
    text = BUNDLE["operating.yaml"].replace("2026-12-01T02:00Z", starts_at)
    policy = compile_bundle(BUNDLE | {"operating.yaml": text.replace("time_zone: null", f"time_zone: {zone}")})
    (window,) = policy.maintenance
    assert datetime.fromtimestamp(window.starts_at, UTC).isoformat() == utc
    assert window.time_zone == zone
    assert policy.time_zones
    (rules,) = policy.time_zones.values()
    assert rules.changes[0].at <= window.starts_at
    assert len(rules.changes) == 1 or rules.changes[1].at > window.starts_at
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy


@pytest.mark.parametrize("text", ["time_zone: null", "time_zone: Europe/Berlin"])
def test_clock_changes_are_in_the_policy_only_for_recurring_windows(text: str) -> None:
    window = BUNDLE["operating.yaml"].replace("weekly", "never").replace("time_zone: null", text)
    policy = compile_bundle(
        BUNDLE | {"operating.yaml": window.replace("02:00Z", "02:00Z" if "null" in text else "02:00")}
    )
    assert policy.time_zones == {}


@pytest.mark.parametrize(
    ("starts_at", "zone", "error"),
    [
        ("2026-12-01T02:00", "Europe/Berln", "operating.yaml:10: time_zone: there is no time zone Europe/Berln; did you mean Europe/Berlin?"),
        ("2026-12-01T02:00", "../../etc/passwd", "operating.yaml:10: time_zone: there is no time zone ../../etc/passwd; use a name of the IANA time zone database, such as Europe/Berlin"),
        ("2026-12-01T02:00", "CEST", "operating.yaml:10: time_zone: there is no time zone CEST; "),
        ("2026-03-29T02:30", "Europe/Berlin", "operating.yaml:9: starts_at: this local time does not exist in Europe/Berlin: clocks are put forward then; write a time that exists, such as 03:30"),
    ],
)  # fmt: skip
def test_invalid_time_zones_are_refused(starts_at: str, zone: str, error: str) -> None:
    text = BUNDLE["operating.yaml"].replace("2026-12-01T02:00Z", starts_at)
    (reported,) = refused(BUNDLE | {"operating.yaml": text.replace("time_zone: null", f"time_zone: {zone}")})
    assert reported.startswith(error)


def test_a_rule_has_its_file_and_line() -> None:
    assert compile_bundle(BUNDLE).residency[0].source == "residency.yaml:3"


def test_every_value_is_in_the_policy() -> None:
    policy = compile_bundle(BUNDLE)
    assert policy.rtt_ms == {"eu-de": {"us-east": 98.0}}
    assert policy.tenants["one"].key_digests == (DIGEST,)
    assert policy.models["llama-3.1-8b"].expected_service_s == 5
    assert policy.models["llama-3.1-8b"].cost == Cost(CostUnit.TOKEN, 0.0001, 0.01)
    assert (policy.failover.failback_ramp_s, policy.spillover.target_utilisation) == (8.0, 0.8)
    assert (policy.objective.survive_one_loss, policy.objective.change_penalty_ms) == (False, 5)
    assert policy.anonymous_tenant is None
    assert policy.guard_rails.max_withdrawn_share == 0.5
    (window,) = policy.maintenance
    assert (window.regions, window.recurrence, window.source) == ({"us-east"}, "weekly", "operating.yaml:7")
    assert datetime.fromtimestamp(window.starts_at, UTC).isoformat() == "2026-12-01T02:00:00+00:00"
    (drill,) = policy.drills
    assert (drill.exercise, drill.region, drill.hold_s, drill.max_burn_rate) == ("evacuate_region", "us-east", 120, 3)
    assert datetime.fromtimestamp(drill.starts_at, UTC).isoformat() == "2026-12-01T09:00:00+00:00"
    assert (drill.recurrence, drill.source) == ("weekly", "operating.yaml:17")


@pytest.mark.parametrize(
    ("fields", "max_wait_s", "max_length"),
    [
        ("", 20.0, 4096),
        ("expected_service_s: 60\n", 120.0, 4096),
        ("expected_service_s: 60\nqueueing: {max_wait_s: 5, max_length: 7}\n", 5.0, 7),
        ("queueing: {max_wait_s: 0}\n", 0.0, 4096),
        ("queueing: {max_wait_s: 20}\n", 20.0, 4096),
    ],
)
def test_requests_wait_for_two_service_times_by_default(fields: str, max_wait_s: float, max_length: int) -> None:
    document = f"\n---\napiVersion: penstock/v1\nkind: Model\nname: slow\n{fields}"
    model = compile_bundle(BUNDLE | {"slow.yaml": document}).models["slow"]
    queueing = model.queueing
    assert (queueing.max_wait_s, queueing.max_length) == (max_wait_s, max_length)
    assert model.wait_follows_service == ("max_wait_s" not in fields)


@pytest.mark.parametrize(("rate", "burst"), [("0.5", 1), ("2", 2), ("2.5", 3), ("null", 1)])
def test_a_quotas_burst_is_one_second_of_its_rate_by_default(rate: str, burst: int) -> None:
    quota = f"{{requests_per_s: {rate}, concurrent: 7}}"
    files = changed("senders.yaml", "{requests_per_s: 5.0, burst_requests: 10, concurrent: null}", quota)
    compiled = compile_bundle(files).tenants["one"].quota
    assert compiled is not None
    assert compiled.burst_requests == burst


def test_how_documents_are_spread_over_files_does_not_matter() -> None:
    def without_sources(policy: Policy) -> object:
        return [(rule.name, rule.allow) for rule in policy.residency], policy.regions, policy.tenants

    one_file = {"all.yaml": "---\n".join(BUNDLE.values())}
    assert without_sources(compile_bundle(one_file)) == without_sources(compile_bundle(BUNDLE))


def test_deny_rules_and_named_regions_are_compiled() -> None:
    files = changed(
        "residency.yaml", "  jurisdictions: [EU]", "  regions: [eu-de, us-east]\ndeny:\n  jurisdictions: [US, CN]"
    )
    (rule,) = compile_bundle(files).residency
    assert (rule.allow, rule.deny) == ({"eu-de", "us-east"}, {"us-east"})


def test_a_deny_rule_does_not_restrict_other_regions() -> None:
    files = changed("residency.yaml", "allow:\n  jurisdictions: [EU]", "deny:\n  jurisdictions: [CN]")
    assert compile_bundle(files).residency[0].allow is None


def removal(**lists: str) -> str:
    fields = "".join(f"{field}: {names}\n" for field, names in lists.items())
    return f"apiVersion: penstock/v1\nkind: AcceptedRemoval\nname: moved\n{fields}because: they moved\n"


def test_accepted_removals_are_no_part_of_the_policy() -> None:
    files = {"moved.yaml": removal(tenants="[gone, left]", residency_rules="[old]")}
    found = compile_revision(BUNDLE | files)
    assert found.accepted_removals == compile_revision(BUNDLE | files).accepted_removals
    assert {kind: sorted(names) for kind, names in found.accepted_removals.items() if names} == {
        "Tenant": ["gone", "left"],
        "ResidencyRule": ["old"],
    }
    assert found.policy.digest() == compile_bundle(BUNDLE).digest()


def test_a_removal_of_a_document_that_is_there_is_refused() -> None:
    assert refused(BUNDLE | {"moved.yaml": removal(tenants="[gone, one]")}) == [
        "moved.yaml:4: tenants[1]: the bundle has the Tenant one; remove the name from the list"
    ]
