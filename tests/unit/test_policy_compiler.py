"""A bundle is compiled whole, or refused whole with every error at its line and what to do about it."""

# A row of a table of messages is one line.
# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import pytest

from control_plane.client import codec
from control_plane.policy import compiler
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.errors import PolicyRefused
from control_plane.policy.kinds.operating import GuardRailsDocument, MaintenanceWindowDocument
from control_plane.policy.kinds.places import RegionDocument
from control_plane.policy.kinds.planning import ObjectiveDocument
from control_plane.policy.kinds.rollout import RolloutDocument
from control_plane.policy.kinds.routing import FailoverDocument, SpilloverDocument
from control_plane.policy.kinds.senders import QuotaShape, TenantDocument
from control_plane.policy.kinds.serving import CostShape, ModelDocument, ServiceObjectiveShape, VersionShape
from control_plane.policy.kinds.shape import Shape
from penstock.policy import (
    Cost,
    CostUnit,
    EntryMap,
    Failover,
    GuardRails,
    MaintenanceWindow,
    Model,
    ModelVersions,
    NearestBy,
    Objective,
    PlanLogic,
    Policy,
    Quota,
    Region,
    RolloutRules,
    Spillover,
    Tenant,
    Version,
)
from penstock.service_objective import ServiceObjective

DIGEST = "ab" * 32

BUNDLE = {
    "places.yaml": """\
apiVersion: penstock/v1
kind: Region
name: eu-de
city: Frankfurt
country: DE
latitude_deg: 50.11
longitude_deg: 8.68
cost_per_gpu_hour: 1.0
egress_cost_per_gb: 0.02
---
apiVersion: penstock/v1
kind: Region
name: us-east
city: Washington
country: US
latitude_deg: 38.9
longitude_deg: -77.04
cost_per_gpu_hour: 1.0
egress_cost_per_gb: 0.02
---
apiVersion: penstock/v1
kind: Bloc
name: EU
members: [DE, ES]
---
apiVersion: penstock/v1
kind: Bloc
name: EEA
members: [EU, NO]
""",
    "senders.yaml": f"""\
apiVersion: penstock/v1
kind: DataClass
name: personal
description: Personal data.
---
apiVersion: penstock/v1
kind: Tenant
name: one
data_class: personal
priority: 0
key_digests: ["{DIGEST}"]
quota: {{requests_per_s: 5.0, burst_requests: 10, concurrent: null}}
---
apiVersion: penstock/v1
kind: AnonymousAccess
tenant: null
""",
    "serving.yaml": """\
apiVersion: penstock/v1
kind: Model
name: llama-3.1-8b
expected_service_s: 5
request_bytes: 4000
response_bytes: 4000
cost: {unit: token, input_unit_s: 0.0001, output_unit_s: 0.01}
fallback: null
service_objective: null
---
apiVersion: penstock/v1
kind: GeoRouting
rtt_ms:
  eu-de: {us-east: 98}
nearest_by: round_trip
bias_ms: {eu-de: 5}
---
apiVersion: penstock/v1
kind: Spillover
target_utilisation: 0.8
margin_s: 0.25
credit_ttl_s: 0.75
step_per_s: 0.25
---
apiVersion: penstock/v1
kind: Failover
probe_interval_s: 0.25
probe_timeout_s: 0.5
misses_to_fail: 2
hits_to_rise: 3
hold_down_s: 1.0
failback_ramp_s: 8.0
---
apiVersion: penstock/v1
kind: Objective
plan_logic: waterfall
latency_ms_per_cost: 20000
queueing_weight: 1.0
change_ms: 5
survive_one_loss: false
forecast_ahead_s: 10
---
apiVersion: penstock/v1
kind: Rollout
shadow_s: 10
most_moved_share: 0.25
canary_regions: [eu-de]
canary_s: 60
acknowledge_within_s: 15
least_requests: 50
most_failures_added: 0.02
most_latency_factor: 1.5
watch_s: 300
""",
    "operating.yaml": """\
apiVersion: penstock/v1
kind: GuardRails
most_withdrawn_share: 0.5
---
apiVersion: penstock/v1
kind: MaintenanceWindow
name: disks
regions: [us-east]
starts_at: 2026-12-01T02:00Z
time_zone: null
duration_s: 7200
recurrence: weekly
lead_s: 600
""",
    "residency.yaml": """\
apiVersion: penstock/v1
kind: ResidencyRule
name: stay
description: Stays.
match:
  data_classes: [personal]
  countries: [EEA]
allow:
  jurisdictions: [EU]
""",
}

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


def changed(file: str, old: str, new: str) -> dict[str, str]:
    assert BUNDLE[file].count(old) == 1, f"{old!r} is not once in {file}"
    return BUNDLE | {file: BUNDLE[file].replace(old, new)}


def refused(files: dict[str, str]) -> list[str]:
    with pytest.raises(PolicyRefused) as caught:
        compile_bundle(files)
    return [str(error) for error in caught.value.errors]


class TestAccepted:
    def test_blocs_unfold_to_countries_and_regions(self) -> None:
        policy = compile_bundle(BUNDLE)
        (rule,) = policy.residency
        assert rule.client_countries == {"DE", "ES", "NO"}
        assert rule.allow == {"eu-de"}
        assert policy.regions["eu-de"].jurisdictions == {"DE", "EU", "EEA"}
        assert policy.regions["us-east"].jurisdictions == {"US"}

    def test_an_entry_map_unfolds_blocs_and_keeps_the_order_of_its_regions(self) -> None:
        text = """\
apiVersion: penstock/v1
kind: EntryMap
name: nordic
description: Cables run that way.
clients: {countries: [EEA], subdivisions: [US-CA]}
regions: [us-east, eu-de]
"""
        (one,) = compile_bundle(BUNDLE | {"maps.yaml": text}).entry_maps
        assert one == EntryMap("nordic", frozenset({"DE", "ES", "NO"}), frozenset({"US-CA"}), ("us-east", "eu-de"))
        errors = refused(BUNDLE | {"maps.yaml": text.replace("eu-de", "eu-du").replace("EEA", "UK")})
        assert "maps.yaml:6: regions[1]: there is no Region eu-du; did you mean eu-de?" in errors
        assert any("maps.yaml:5: clients.countries[0]: UK is no country" in error for error in errors)

    def test_a_quota(self) -> None:
        assert compile_bundle(BUNDLE).tenants["one"].quota == Quota(5.0, 10, None)
        unlimited = changed("senders.yaml", "{requests_per_s: 5.0, burst_requests: 10, concurrent: null}", "null")
        assert compile_bundle(unlimited).tenants["one"].quota is None

    def test_versions_of_a_model(self) -> None:
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
                "versions.yaml:11: the percentages do not sum to 100; write 0 for a version that gets nothing",
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
    def test_versions_that_cannot_be(self, old: str, new: str, error: str | None) -> None:
        assert VERSIONS.count(old) == 1
        files = BUNDLE | {"versions.yaml": VERSIONS.replace(old, new)}
        if error is None:
            assert compile_bundle(files).versions
        else:
            assert error in refused(files)

    def test_a_name_for_versions_must_not_hide_a_model(self) -> None:
        text = VERSIONS.replace("name: llama\n", "name: llama-next\n").replace("model: llama-next", "model: llama-3")
        text = text.replace("kind: Model\nname: llama-next", "kind: Model\nname: llama-3") + EXTRA
        error = "versions.yaml:13: name: hides the model llama-next, which nobody could ask for any more; "
        assert any(one.startswith(error) for one in refused(BUNDLE | {"versions.yaml": text}))

    def test_a_service_objective(self) -> None:
        without = compile_bundle(BUNDLE)
        assert b"service_objective" not in msgspec.json.encode(without)
        text = "service_objective: {first_byte_s: 1.5, share: 0.99}"
        policy = compile_bundle(changed("serving.yaml", "service_objective: null", text))
        assert policy.models["llama-3.1-8b"].service_objective == ServiceObjective(1.5, 0.99)

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("{first_byte_s: 1.5, share: 99}", "serving.yaml:9: service_objective.share: "),
            ("{first_byte_s: 1.5, share: 1}", "serving.yaml:9: service_objective.share: "),
            ("{first_byte_s: 0, share: 0.99}", "serving.yaml:9: service_objective.first_byte_s: "),
            ("{share: 0.99}", "serving.yaml:9: service_objective.first_byte_s: "),
            ("0.99", "serving.yaml:9: service_objective: "),
        ],
    )
    def test_service_objectives_that_cannot_be(self, text: str, error: str) -> None:
        said = refused(changed("serving.yaml", "service_objective: null", f"service_objective: {text}"))
        assert [one.startswith(error) and "; " in one for one in said] == [True], said

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
    def test_a_window_by_the_clocks_of_a_zone(self, starts_at: str, zone: str, utc: str) -> None:
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
    def test_rules_of_zones_are_in_policy_only_where_a_window_recurs_by_them(self, text: str) -> None:
        window = BUNDLE["operating.yaml"].replace("weekly", "never").replace("time_zone: null", text)
        policy = compile_bundle(
            BUNDLE | {"operating.yaml": window.replace("02:00Z", "02:00Z" if "null" in text else "02:00")}
        )
        assert b"time_zones" not in msgspec.json.encode(policy)

    @pytest.mark.parametrize(
        ("starts_at", "zone", "error"),
        [
            ("2026-12-01T02:00", "Europe/Berln", "operating.yaml:10: time_zone: there is no time zone Europe/Berln; did you mean Europe/Berlin?"),
            ("2026-12-01T02:00", "../../etc/passwd", "operating.yaml:10: time_zone: there is no time zone ../../etc/passwd; use a name of the IANA time zone database, such as Europe/Berlin"),
            ("2026-12-01T02:00", "CEST", "operating.yaml:10: time_zone: there is no time zone CEST; "),
            ("2026-03-29T02:30", "Europe/Berlin", "operating.yaml:9: starts_at: clocks of Europe/Berlin never show this: they are put forward then; write a time that they show, such as 03:30"),
        ],
    )  # fmt: skip
    def test_clocks_that_cannot_be(self, starts_at: str, zone: str, error: str) -> None:
        text = BUNDLE["operating.yaml"].replace("2026-12-01T02:00Z", starts_at)
        (told,) = refused(BUNDLE | {"operating.yaml": text.replace("time_zone: null", f"time_zone: {zone}")})
        assert told.startswith(error)

    def test_a_rule_knows_where_it_was_written(self) -> None:
        assert compile_bundle(BUNDLE).residency[0].source == "residency.yaml:3"

    def test_every_value_arrives(self) -> None:
        policy = compile_bundle(BUNDLE)
        assert policy.rtt_ms == {"eu-de": {"us-east": 98.0}}
        assert policy.bias_ms == {"eu-de": 5.0}
        assert policy.nearest_by is NearestBy.ROUND_TRIP
        assert policy.tenants["one"].key_digests == (DIGEST,)
        assert policy.models["llama-3.1-8b"].expected_service_s == 5
        assert policy.models["llama-3.1-8b"].cost == Cost(CostUnit.TOKEN, 0.0001, 0.01)
        assert (policy.failover.failback_ramp_s, policy.spillover.target_utilisation) == (8.0, 0.8)
        assert (policy.objective.survive_one_loss, policy.objective.change_ms) == (False, 5)
        assert policy.objective.plan_logic is PlanLogic.WATERFALL
        assert policy.anonymous_tenant is None
        assert policy.guard_rails.most_withdrawn_share == 0.5
        (window,) = policy.maintenance
        assert (window.regions, window.recurrence, window.source) == ({"us-east"}, "weekly", "operating.yaml:7")
        assert datetime.fromtimestamp(window.starts_at, UTC).isoformat() == "2026-12-01T02:00:00+00:00"

    @pytest.mark.parametrize(
        ("document", "noun", "compiled"),
        [
            (RegionDocument, Region, {"jurisdictions"}),
            (ModelDocument, Model, set()),
            (VersionShape, Version, set()),
            (CostShape, Cost, set()),
            (ServiceObjectiveShape, ServiceObjective, set()),
            (TenantDocument, Tenant, set()),
            (QuotaShape, Quota, set()),
            (SpilloverDocument, Spillover, set()),
            (FailoverDocument, Failover, set()),
            (ObjectiveDocument, Objective, set()),
            (RolloutDocument, RolloutRules, set()),
            (GuardRailsDocument, GuardRails, set()),
            (MaintenanceWindowDocument, MaintenanceWindow, {"source"}),
        ],
    )
    def test_every_field_of_the_policy_is_written_in_its_document(
        self, document: type[Shape], noun: type[msgspec.Struct], compiled: set[str]
    ) -> None:
        assert set(document.model_fields) - {"api_version", "kind"} == set(noun.__struct_fields__) - compiled
        assert all(field.is_required() for field in document.model_fields.values())

    def test_how_documents_are_spread_over_files_does_not_matter(self) -> None:
        def without_sources(policy: Policy) -> object:
            return [(rule.name, rule.allow) for rule in policy.residency], policy.regions, policy.tenants

        one_file = {"all.yaml": "---\n".join(BUNDLE.values())}
        assert without_sources(compile_bundle(one_file)) == without_sources(compile_bundle(BUNDLE))

    def test_deny_and_named_regions(self) -> None:
        files = changed(
            "residency.yaml", "  jurisdictions: [EU]", "  regions: [eu-de, us-east]\ndeny:\n  jurisdictions: [US, CN]"
        )
        (rule,) = compile_bundle(files).residency
        assert (rule.allow, rule.deny) == ({"eu-de", "us-east"}, {"us-east"})

    def test_a_rule_that_only_denies_allows_what_others_do(self) -> None:
        files = changed("residency.yaml", "allow:\n  jurisdictions: [EU]", "deny:\n  jurisdictions: [CN]")
        assert compile_bundle(files).residency[0].allow is None


SHAPE = [
    ("places.yaml", "latitude_deg: 50.11", "latitude_deg: 500", "places.yaml:6: latitude_deg: input should be less than or equal to 90; correct it; policies/schema.json describes every field"),
    ("places.yaml", "latitude_deg: 50.11", 'latitude_deg: "50.11"', "places.yaml:6: latitude_deg: input should be a valid number; write a number, without quotes"),
    ("places.yaml", "city: Frankfurt\n", "", "places.yaml:1: city: is missing; write it; nothing has a default"),
    ("places.yaml", "city: Frankfurt", "ctiy: Frankfurt\ncity: x", "places.yaml:4: ctiy: is no field here; did you mean city?"),
    ("places.yaml", "name: eu-de", "name: EU_DE", "places.yaml:3: name: is not well-formed; use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at an end"),
    ("senders.yaml", f'"{DIGEST}"', "my-secret-key", "senders.yaml:11: key_digests[0]: is not well-formed; write the SHA-256 of the key in 64 lower-case hexadecimal digits, in quotes: printf %s KEY | sha256sum"),
    ("senders.yaml", f'["{DIGEST}"]', f'["{DIGEST}", "{DIGEST}"]', f"senders.yaml:11: key_digests: '{DIGEST}' is listed twice; keep one of them"),
    ("residency.yaml", "countries: [EEA]", "country: [EEA]", "residency.yaml:7: match.country: is no field here; did you mean countries?"),
    ("residency.yaml", "countries: [EEA]", "subdivisions: [California]", "residency.yaml:7: match.subdivisions[0]: is not well-formed; write an ISO 3166-2 code with its country, such as US-CA"),
    ("residency.yaml", "countries: [EEA]", "countries: []", "residency.yaml:7: match.countries: is empty; list something, or remove the field"),
    ("residency.yaml", "countries: [EEA]", "countries:", "residency.yaml:7: match.countries: is blank; write it; nothing has a default"),
    ("residency.yaml", "allow:\n  jurisdictions: [EU]\n", "", "residency.yaml:1: the rule changes nothing; write `allow`, `deny`, or both"),
    ("residency.yaml", "  jurisdictions: [EU]", "  {}", "residency.yaml:8: allow: names no place; write `regions`, `jurisdictions`, or both"),
    ("residency.yaml", "kind: ResidencyRule", "kind: ResidencyRules", "residency.yaml:2: kind: is no kind of policy document; did you mean ResidencyRule?"),
    ("residency.yaml", "kind: ResidencyRule\n", "", "residency.yaml:1: says no kind; write `kind`, one of Region, Bloc, Model, ModelVersions, DataClass, Tenant, AnonymousAccess, ResidencyRule, AcceptedLoss, GeoRouting, EntryMap, Spillover, SpilloverLimit, SpilloverOrder, Failover, Objective, Rollout, GuardRails, MaintenanceWindow"),
    ("operating.yaml", "2026-12-01T02:00Z", "tomorrow", "operating.yaml:9: starts_at: is not well-formed; write date and minute in UTC, such as 2026-12-01T02:00Z, or without the Z where time_zone names a zone"),
    ("operating.yaml", "2026-12-01T02:00Z", "9999-12-01T02:00Z", "operating.yaml:9: starts_at: is not well-formed; write date and minute in UTC, such as 2026-12-01T02:00Z, or without the Z where time_zone names a zone"),
    ("operating.yaml", "T02:00Z", "T02:00", "operating.yaml:5: starts_at does not say by whose clocks it is; write Z behind starts_at for UTC, or name the time_zone"),
    ("operating.yaml", "time_zone: null", "time_zone: Europe/Berlin", "operating.yaml:5: starts_at is in UTC and time_zone is named; write starts_at as clocks there show it, without the Z; or time_zone: null"),
    ("operating.yaml", "2026-12-01T02:00Z", "2026-13-01T02:00Z", "operating.yaml:9: starts_at: is no moment: month must be in 1..12; write a moment that exists, such as 2026-12-01T02:00Z"),
    ("operating.yaml", "duration_s: 7200", "duration_s: 604700", "operating.yaml:5: the window would never close; make lead_s and duration_s together shorter than the time between two of them"),
    ("residency.yaml", "penstock/v1", "penstock/v2", "residency.yaml:1: apiVersion: is not known; write 'penstock/v1'"),
    ("serving.yaml", "hits_to_rise: 3", "hits_to_rise: 2.5", "serving.yaml:30: hits_to_rise: input should be a valid integer; write a number, without quotes"),
    ("serving.yaml", "margin_s: 0.25", "margin_s: .inf", "serving.yaml:21: margin_s: input should be a valid number; write a number, without quotes"),
    ("senders.yaml", "requests_per_s: 5.0", "requests_per_s: null", "senders.yaml:12: quota: limits nothing; give a number for one, or write `quota: null`"),
    ("serving.yaml", "us-east: 98", "US: 98", "serving.yaml:14: rtt_ms.eu-de.US: is not well-formed; use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at an end"),
]  # fmt: skip

REFERENCES = [
    ("operating.yaml", "regions: [us-east]", "regions: [us-west]", "operating.yaml:8: regions[0]: there is no Region us-west; did you mean us-east?"),
    ("serving.yaml", "canary_regions: [eu-de]", "canary_regions: [eu-dd]", "serving.yaml:47: canary_regions[0]: there is no Region eu-dd; did you mean eu-de?"),
    ("residency.yaml", "[personal]", "[personnel]", "residency.yaml:6: match.data_classes[0]: there is no DataClass personnel; did you mean personal?"),
    ("residency.yaml", "  data_classes: [personal]", "  tenants: [two]", "residency.yaml:6: match.tenants[0]: there is no Tenant two; use one of one"),
    ("residency.yaml", "countries: [EEA]", "subdivisions: [UK-ENG]", "residency.yaml:7: match.subdivisions[0]: UK is no country; the United Kingdom is GB in ISO 3166-1"),
    ("residency.yaml", "countries: [EEA]", "countries: [EEA, UK]", "residency.yaml:7: match.countries[1]: UK is no country or bloc; the United Kingdom is GB in ISO 3166-1"),
    ("residency.yaml", "countries: [EEA]", "countries: [de]", "residency.yaml:7: match.countries[0]: de is no country or bloc; write DE, in capitals"),
    ("residency.yaml", "countries: [EEA]", "countries: [Germany]", "residency.yaml:7: match.countries[0]: Germany is no country or bloc; use one of EEA, EU"),
    ("residency.yaml", "jurisdictions: [EU]", "regions: [eu-dd]", "residency.yaml:9: allow.regions[0]: there is no Region eu-dd; did you mean eu-de?"),
    ("residency.yaml", "jurisdictions: [EU]", "jurisdictions: [JP]", "residency.yaml:8: allow: allows no region at all; name a place where a region of this bundle lies"),
    ("places.yaml", "country: US", "country: USA", "places.yaml:15: country: USA is no country; use its ISO 3166-1 alpha-2 code, such as DE"),
    ("places.yaml", "members: [DE, ES]", "members: [DE, ES, EEA]", "places.yaml:24: members[2]: EU is a member of itself through EEA; remove one of the memberships"),
    ("places.yaml", "name: EEA", "name: FR", "places.yaml:28: name: FR is a country's code; choose another name"),
    ("senders.yaml", "data_class: personal", "data_class: other", "senders.yaml:9: data_class: there is no DataClass other; use one of personal"),
    ("senders.yaml", "tenant: null", "tenant: nobody", "senders.yaml:16: tenant: there is no Tenant nobody; use one of one"),
    ("serving.yaml", "bias_ms: {eu-de: 5}", "bias_ms: {eu-du: 5}", "serving.yaml:16: bias_ms.eu-du: there is no Region eu-du; did you mean eu-de?"),
    ("serving.yaml", "{us-east: 98}", "{us-west: 98}", "serving.yaml:14: rtt_ms.eu-de.us-west: there is no Region us-west; did you mean us-east?"),
    ("places.yaml", "name: us-east", "name: eu-de", "places.yaml:13: name: Region eu-de exists already; keep one; see places.yaml:3"),
    ("senders.yaml", "kind: AnonymousAccess\ntenant: null", "kind: Tenant\nname: two\ndata_class: personal\npriority: 0\nquota: null\nkey_digests: [\"" + DIGEST + "\"]", "senders.yaml:20: key_digests[0]: tenant one has this key already; give each tenant keys of its own"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: AnonymousAccess\ntenant: one", "senders.yaml:19: kind: too many documents of kind AnonymousAccess; keep at most 1"),
    ("serving.yaml", "kind: Model\nname: llama-3.1-8b\nexpected_service_s: 5\nrequest_bytes: 4000\nresponse_bytes: 4000\ncost: {unit: token, input_unit_s: 0.0001, output_unit_s: 0.01}\nfallback: null\nservice_objective: null\n", "kind: Bloc\nname: X-X\nmembers: [DE]\n", "(bundle): has no document of kind Model; add one; policies/planet shows its fields"),
]  # fmt: skip


class TestRefused:
    @pytest.mark.parametrize(("file", "old", "new", "error"), SHAPE, ids=lambda value: value[:40])
    def test_a_document_of_the_wrong_shape(self, file: str, old: str, new: str, error: str) -> None:
        assert error in refused(changed(file, old, new))

    @pytest.mark.parametrize(("file", "old", "new", "error"), REFERENCES, ids=lambda value: value[:40])
    def test_a_name_that_does_not_fit(self, file: str, old: str, new: str, error: str) -> None:
        assert error in refused(changed(file, old, new))

    def test_every_error_of_every_file_is_listed_at_once_in_order(self) -> None:
        places = changed("places.yaml", "latitude_deg: 50.11", "latitude_deg: 500")
        rules = changed("residency.yaml", "[personal]", "[personnel]")
        files = places | {"residency.yaml": rules["residency.yaml"], "zz.yaml": "a: ["}
        assert [error.split(": ")[0] for error in refused(files)] == ["places.yaml:6", "residency.yaml:6", "zz.yaml:1"]

    @pytest.mark.parametrize("places", ["regions: [eu-de]", "jurisdictions: [EU]"])
    def test_a_broken_document_is_one_error_and_no_more(self, places: str) -> None:
        files = changed("places.yaml", "latitude_deg: 50.11", "latitude_deg: 500")
        files["residency.yaml"] = files["residency.yaml"].replace("jurisdictions: [EU]", places)
        assert [error.split(":")[0] for error in refused(files)] == ["places.yaml"]

    def test_a_value_that_may_be_a_secret_is_not_repeated(self) -> None:
        files = changed("senders.yaml", f'"{DIGEST}"', "my-secret-key")
        assert not any("my-secret-key" in error for error in refused(files))

    def test_blocs_within_blocs_without_end_take_no_time(self) -> None:
        blocs = [f"apiVersion: penstock/v1\nkind: Bloc\nname: B{i}\nmembers: [B{i + 1}, C{i + 1}]\n---\n"
                 f"apiVersion: penstock/v1\nkind: Bloc\nname: C{i}\nmembers: [B{i + 1}, C{i + 1}]\n" for i in range(60)]  # fmt: skip
        last = "apiVersion: penstock/v1\nkind: Bloc\nname: B60\nmembers: [FR]\n---\napiVersion: penstock/v1\nkind: Bloc\nname: C60\nmembers: [IT]\n"
        files = changed("residency.yaml", "countries: [EEA]", "countries: [B0]") | {
            "blocs.yaml": "---\n".join([*blocs, last])
        }
        assert compile_bundle(files).residency[0].client_countries == {"FR", "IT"}

    @pytest.mark.parametrize(
        ("bound", "value", "files", "problem"),
        [
            ("LARGEST_FILE_BYTES", 100, lambda: BUNDLE, "larger than 100 bytes"),
            ("LARGEST_BUNDLE_BYTES", 1000, lambda: BUNDLE, "larger than 1000 bytes in all"),
            ("MOST_FILES", 4, lambda: BUNDLE, "has 5 files"),
        ],
    )
    def test_bounds(
        self, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, files: Callable[[], dict[str, str]], problem: str
    ) -> None:
        monkeypatch.setattr(compiler, bound, value)
        assert any(problem in error for error in refused(files()))

    def test_a_policy_that_the_store_cannot_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(codec, "MAX_VALUE_BYTES", 1000)
        (error,) = refused(BUNDLE)
        assert error.startswith("(bundle): Policy of ")
        assert "than the store takes" in error

    @pytest.mark.parametrize(
        ("old", "new", "error"),
        [
            (
                "match:\n  data_classes: [personal]\n  countries: [EEA]\n",
                "match: []\n",
                "match: is no mapping; write its fields below it, indented",
            ),
            ("countries: [EEA]", "countries: EEA", "match.countries: is no list; write it as one, such as [a, b]"),
            ("allow:\n  jurisdictions: [EU]", "allow:", "allow: is blank; write it; nothing has a default"),
        ],
    )
    def test_what_is_blank_or_of_another_type_is_told_in_words_of_yaml(self, old: str, new: str, error: str) -> None:
        assert error in "\n".join(refused(changed("residency.yaml", old, new)))

    def test_what_could_not_be_read_is_not_called_missing(self) -> None:
        for old, new in (("kind: Region", "kind: Regoin"), ("city: Frankfurt", "\tcity: Frankfurt")):
            errors = refused({**BUNDLE, "places.yaml": BUNDLE["places.yaml"].replace(old, new)})
            assert not [error for error in errors if "has no document of kind" in error]

    def test_an_unknown_jurisdiction_is_one_error(self) -> None:
        errors = refused(changed("residency.yaml", "jurisdictions: [EU]", "jurisdictions: [USA]"))
        assert not [error for error in errors if "allows no region at all" in error]
        assert len(errors) == 1

    def test_what_a_terminal_would_obey_is_spelled_out(self) -> None:
        name = "a\x1b[31m\u202e"
        text = BUNDLE["senders.yaml"].replace("name: one", 'name: "a\\e[31m\\u202e"')
        errors = refused({**BUNDLE, "senders.yaml": text, "again.yaml": text})
        assert any("a\\x1b[31m\\u202e exists already" in error for error in errors)
        assert not any(name in error for error in errors)
