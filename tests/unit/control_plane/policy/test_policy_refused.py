"""A bundle with errors is refused as a whole, with the line and the remedy of every error."""

# A row of a table of messages is one line.
# ruff: noqa: E501

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from adapters.configuration.strict_yaml import YamlDocument
from adapters.store import codec
from control_plane.policy import compiler
from control_plane.policy.bundle_errors import MAX_ERRORS, MAX_SUGGESTIONS
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.documents import Document
from control_plane.policy.kinds import API_VERSION, KINDS
from control_plane.policy.struct_reader import read_struct
from tests.support.policy_bundle import BUNDLE, DIGEST, changed, refused

SHAPE = [
    ("places.yaml", "latitude_deg: 50.11", "latitude_deg: 500", "places.yaml:6: latitude_deg: is out of bounds; write a number that is at least -90 and at most 90"),
    ("places.yaml", "latitude_deg: 50.11", 'latitude_deg: "50.11"', "places.yaml:6: latitude_deg: is not a number; write a number, without quotes"),
    ("places.yaml", "country: DE\n", "", "places.yaml:1: country: is missing; write it: it has no default"),
    ("places.yaml", "city: Frankfurt", "ctiy: Frankfurt\ncity: x", "places.yaml:4: ctiy: is not a known field; did you mean city?"),
    ("places.yaml", "name: eu-de", "name: EU_DE", "places.yaml:3: name: is not well-formed; use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at an end"),
    ("senders.yaml", f'"{DIGEST}"', "my-secret-key", "senders.yaml:11: key_digests[0]: is not well-formed; write the SHA-256 of the key in 64 lower-case hexadecimal digits, in quotes: printf %s KEY | sha256sum"),
    ("senders.yaml", f'["{DIGEST}"]', f'["{DIGEST}", "{DIGEST}"]', f"senders.yaml:11: key_digests: '{DIGEST}' is listed twice; keep one of them"),
    ("residency.yaml", "countries: [EEA]", "country: [EEA]", "residency.yaml:7: match.country: is not a known field; did you mean countries?"),
    ("residency.yaml", "countries: [EEA]", "subdivisions: [California]", "residency.yaml:7: match.subdivisions[0]: is not well-formed; write an ISO 3166-2 code with its country, such as US-CA"),
    ("residency.yaml", "countries: [EEA]", "countries: []", "residency.yaml:7: match.countries: is empty; list something, or remove the field"),
    ("residency.yaml", "countries: [EEA]", "countries:", "residency.yaml:7: match.countries: is blank; write its value, or remove the field to use its default"),
    ("residency.yaml", "allow:\n  jurisdictions: [EU]\n", "", "residency.yaml:1: the rule has no effect; write `allow`, `deny`, or both"),
    ("residency.yaml", "  jurisdictions: [EU]", "  {}", "residency.yaml:8: allow: selects no region; write `regions`, `jurisdictions`, or both"),
    ("residency.yaml", "kind: ResidencyRule", "kind: ResidencyRules", "residency.yaml:2: kind: is not a kind of policy document; did you mean ResidencyRule?"),
    ("residency.yaml", "kind: ResidencyRule\n", "", "residency.yaml:1: has no kind; write `kind`, one of Region, Bloc, Model, ModelVersions, ModelRollout, Route, RoutePresets, DataClass, Tier, Tenant, Issuer, Prices, UsageStore, JobStore, Coalescing, ResultCache, AnonymousAccess, BrowserAccess, ResidencyRule, AcceptedLoss, AcceptedRemoval, GeoRouting, EntryMap, DnsZone, DnsName, Spillover, SpilloverLimit, Failover, Objective, Rollout, GuardRails, MaintenanceWindow, Event, DemandSignal, Drill"),
    ("operating.yaml", "2026-12-01T02:00Z", "tomorrow", "operating.yaml:9: starts_at: is not well-formed; write date and minute in UTC, such as 2026-12-01T02:00Z, or local time without the Z and a time_zone"),
    ("operating.yaml", "2026-12-01T02:00Z", "9999-12-01T02:00Z", "operating.yaml:9: starts_at: is not well-formed; write date and minute in UTC, such as 2026-12-01T02:00Z, or local time without the Z and a time_zone"),
    ("places.yaml", "city: Frankfurt", 'city: "Frank\\e[31mfurt"', "places.yaml:4: city: has the invisible character \\x1b; remove it"),
    ("places.yaml", "city: Frankfurt", 'city: "Frank\\u202efurt"', "places.yaml:4: city: has the invisible character \\u202e; remove it"),
    ("operating.yaml", "T02:00Z", "T02:00", "operating.yaml:9: starts_at: has no time zone; append Z for UTC, or write time_zone"),
    ("operating.yaml", "time_zone: null", "time_zone: Europe/Berlin", "operating.yaml:9: starts_at: is in UTC, but time_zone is set; write it in local time, without the Z, or remove time_zone"),
    ("operating.yaml", "2026-12-01T02:00Z", "2026-13-01T02:00Z", "operating.yaml:9: starts_at: is not a valid date and time; write date and minute in UTC, such as 2026-12-01T02:00Z, or local time without the Z and a time_zone"),
    ("operating.yaml", "duration_s: 7200", "duration_s: 604700", "operating.yaml:5: the window never closes; make the sum of lead_s and duration_s shorter than the recurrence"),
    ("residency.yaml", "penstock/v1", "penstock/v2", "residency.yaml:1: apiVersion: is not known; did you mean penstock/v1?"),
    ("serving.yaml", "healthy_threshold: 3", "healthy_threshold: 2.5", "serving.yaml:28: healthy_threshold: is not a whole number; write a whole number, without quotes"),
    ("serving.yaml", "margin_s: 0.25", "margin_s: .inf", "serving.yaml:19: margin_s: is not a number; write a number, without quotes"),
    ("senders.yaml", "requests_per_s: 5.0", "requests_per_s: null", "senders.yaml:12: quota: limits nothing; write requests_per_s or concurrent, or remove the quota"),
    ("senders.yaml", "burst_requests: 10", "burst: 10", "senders.yaml:12: quota.burst: is not a known field; use one of burst_requests, concurrent, requests_per_s"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: Model\nname: own\nonly_tenants: [acme]\n---\napiVersion: penstock/v1\nkind: ModelVersions\nname: chat\nversions: [{model: llama-3.1-8b, percent: 50}, {model: own, percent: 50}]", "senders.yaml:26: versions: some versions are reserved for tenants for whom others are not; give all of them the same only_tiers, only_data_classes and only_tenants; see also for_tiers"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: ModelVersions\nname: chat\ndescription: x\nversions: [{modle: llama-3.1-8b, percent: 100}]", "senders.yaml:22: versions[0].modle: is not a known field; did you mean model?"),
    ("serving.yaml", "us-east: 98", "US: 98", "serving.yaml:14: rtt_ms.eu-de.US: is not well-formed; use 1 to 63 lower-case letters, digits and hyphens, with no hyphen at an end"),
    ("serving.yaml", "target_utilisation: 0.8", "target_utilisation: 0", "serving.yaml:18: target_utilisation: is out of bounds; write a number that is above 0 and at most 1"),
    ("serving.yaml", "target_utilisation: 0.8", "target_utilisation: 1e-310", "serving.yaml:18: target_utilisation: is out of bounds; write 0 or a larger number; policies/schema.json describes every field"),
    ("serving.yaml", "margin_s: 0.25", "margin_s: 1e999", "serving.yaml:19: margin_s: is out of bounds; write a smaller number; policies/schema.json describes every field"),
    ("serving.yaml", "margin_s: 0.25", "margin_s: true", "serving.yaml:19: margin_s: is not a number; write a number, without quotes"),
    ("serving.yaml", "survive_one_loss: false", "survive_one_loss: 0", "serving.yaml:37: survive_one_loss: is neither true nor false; write true or false, without quotes"),
    ("serving.yaml", "unit: token", "unit: tokens", "serving.yaml:7: cost.unit: is not known; did you mean token?"),
    ("serving.yaml", "unit: token, ", "", "serving.yaml:7: cost.unit: is missing; write it: it has no default"),
    ("serving.yaml", "fallback: null", "fallback: 7", "serving.yaml:8: fallback: is not a text; put the text in quotes"),
    ("places.yaml", "city: Frankfurt", "jurisdictions: [DE]", "places.yaml:4: jurisdictions: is not a known field; remove it; policies/schema.json describes every field"),
    ("places.yaml", "city: Frankfurt", f"description: {'x' * 501}", "places.yaml:4: description: has more than 500 characters; make it shorter"),
    ("places.yaml", "apiVersion: penstock/v1\nkind: Region\nname: eu-de", "kind: Region\nname: eu-de", "places.yaml:1: apiVersion: is missing; write `apiVersion: penstock/v1`"),
]  # fmt: skip

REFERENCES = [
    ("operating.yaml", "region: us-east", "region: us-west", "operating.yaml:19: region: there is no Region us-west; did you mean us-east?"),
    ("operating.yaml", "region: us-east", "region: null", "operating.yaml:15: exercise and region do not match; write region for evacuate_region, and for no other exercise"),
    ("operating.yaml", "regions: [us-east]", "regions: [us-west]", "operating.yaml:8: regions[0]: there is no Region us-west; did you mean us-east?"),
    ("serving.yaml", "canary_regions: [eu-de]", "canary_regions: [eu-dd]", "serving.yaml:44: canary_regions[0]: there is no Region eu-dd; did you mean eu-de?"),
    ("residency.yaml", "[personal]", "[personnel]", "residency.yaml:6: match.data_classes[0]: there is no DataClass personnel; did you mean personal?"),
    ("residency.yaml", "  data_classes: [personal]", "  tenants: [two]", "residency.yaml:6: match.tenants[0]: there is no Tenant two; use one of one"),
    ("residency.yaml", "countries: [EEA]", "subdivisions: [UK-ENG]", "residency.yaml:7: match.subdivisions[0]: UK is not a country; the United Kingdom is GB in ISO 3166-1"),
    ("residency.yaml", "countries: [EEA]", "countries: [EEA, UK]", "residency.yaml:7: match.countries[1]: UK is not a country or bloc; the United Kingdom is GB in ISO 3166-1"),
    ("residency.yaml", "countries: [EEA]", "countries: [de]", "residency.yaml:7: match.countries[0]: de is not a country or bloc; write DE, in capitals"),
    ("residency.yaml", "countries: [EEA]", "countries: [Germany]", "residency.yaml:7: match.countries[0]: Germany is not a country or bloc; use one of EEA, EFTA, EU, EU-TERRITORIES, GCC"),
    ("residency.yaml", "jurisdictions: [EU]", "regions: [eu-dd]", "residency.yaml:9: allow.regions[0]: there is no Region eu-dd; did you mean eu-de?"),
    ("residency.yaml", "jurisdictions: [EU]", "jurisdictions: [JP]", "residency.yaml:8: allow: allows no region; name a region of this bundle, or a jurisdiction of one"),
    ("places.yaml", "country: US", "country: USA", "places.yaml:15: country: USA is not a country; use its ISO 3166-1 alpha-2 code, such as DE"),
    ("places.yaml", "members: [DE, ES]", "members: [DE, ES, EEA]", "places.yaml:24: members[2]: EU is a member of itself through EEA; remove one of the memberships"),
    ("places.yaml", "name: EEA", "name: FR", "places.yaml:28: name: FR is a country's code; choose another name"),
    ("senders.yaml", "data_class: personal", "data_class: other", "senders.yaml:9: data_class: there is no DataClass other; use one of personal"),
    ("senders.yaml", "tenant: null", "tenant: nobody", "senders.yaml:16: tenant: there is no Tenant nobody; use one of one"),
    ("places.yaml", "city: Washington", "spillover_order: [eu-du]", "places.yaml:14: spillover_order[0]: there is no Region eu-du; did you mean eu-de?"),
    ("places.yaml", "city: Washington", "spillover_order: [us-east]", "places.yaml:14: spillover_order[0]: is the region itself; remove it"),
    ("serving.yaml", "{us-east: 98}", "{us-west: 98}", "serving.yaml:14: rtt_ms.eu-de.us-west: there is no Region us-west; did you mean us-east?"),
    ("places.yaml", "name: us-east", "name: eu-de", "places.yaml:13: name: Region eu-de exists already; keep one; see places.yaml:3"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: BrowserAccess\ncors_origins: [https://app.example/]", "senders.yaml:20: cors_origins[0]: is not well-formed; write the origin as browsers send it, such as https://app.example or http://localhost:3000, without a path and without the default port of the scheme; or *"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: BrowserAccess\ncors_origins: [https://App.example]", "senders.yaml:20: cors_origins[0]: is not well-formed; write the origin as browsers send it, such as https://app.example or http://localhost:3000, without a path and without the default port of the scheme; or *"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: BrowserAccess\ncors_origins: [\"null\"]", "senders.yaml:20: cors_origins[0]: is not well-formed; write the origin as browsers send it, such as https://app.example or http://localhost:3000, without a path and without the default port of the scheme; or *"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: BrowserAccess\ncors_origins: [\"https://app.example:443\"]", "senders.yaml:20: cors_origins[0]: is not well-formed; write the origin as browsers send it, such as https://app.example or http://localhost:3000, without a path and without the default port of the scheme; or *"),
    ("senders.yaml", "kind: AnonymousAccess\ntenant: null", "kind: Tenant\nname: two\ndata_class: personal\npriority: 0\nquota: null\nkey_digests: [\"" + DIGEST + "\"]", "senders.yaml:20: key_digests[0]: tenant one has this key already; give each tenant keys of its own"),
    ("senders.yaml", "tenant: null", "tenant: null\n---\napiVersion: penstock/v1\nkind: AnonymousAccess\ntenant: one", "senders.yaml:19: kind: too many documents of kind AnonymousAccess; keep at most 1"),
    ("serving.yaml", "kind: Model\nname: llama-3.1-8b\nexpected_service_s: 5\nrequest_bytes: 4000\nresponse_bytes: 4000\ncost: {unit: token, input_unit_s: 0.0001, output_unit_s: 0.01}\nfallback: null\nservice_objective: null\n", "kind: Bloc\nname: X-X\nmembers: [DE]\n", "(bundle): has no document of kind Model; add one; policies/planet shows its fields"),
]  # fmt: skip


def row_id(value: str) -> str:
    """An id without escapes: pytest escapes it once more in each run of one process, and mutmut runs pytest often."""
    return re.sub(r"[\\\n]+", " ", value[:40])


@pytest.mark.parametrize(("file", "old", "new", "error"), SHAPE + REFERENCES, ids=row_id)
def test_invalid_documents_and_names_are_refused(file: str, old: str, new: str, error: str) -> None:
    assert error in refused(changed(file, old, new))


def test_every_error_of_every_file_is_listed_at_once_in_order() -> None:
    places = changed("places.yaml", "latitude_deg: 50.11", "latitude_deg: 500")
    rules = changed("residency.yaml", "[personal]", "[personnel]")
    files = places | {"residency.yaml": rules["residency.yaml"], "zz.yaml": "a: ["}
    assert [error.split(": ")[0] for error in refused(files)] == ["places.yaml:6", "residency.yaml:6", "zz.yaml:1"]


@pytest.mark.parametrize("places", ["regions: [eu-de]", "jurisdictions: [EU]"])
def test_an_invalid_document_is_one_error(places: str) -> None:
    files = changed("places.yaml", "latitude_deg: 50.11", "latitude_deg: 500")
    files["residency.yaml"] = files["residency.yaml"].replace("jurisdictions: [EU]", places)
    assert [error.split(":")[0] for error in refused(files)] == ["places.yaml"]


def test_a_value_that_may_be_a_secret_is_not_repeated() -> None:
    files = changed("senders.yaml", f'"{DIGEST}"', "my-secret-key")
    assert not any("my-secret-key" in error for error in refused(files))


def test_cyclic_blocs_are_refused_in_bounded_time() -> None:
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
        ("MAX_FILE_BYTES", 100, lambda: BUNDLE, "larger than 100 bytes"),
        ("MAX_BUNDLE_BYTES", 1000, lambda: BUNDLE, "larger than 1000 bytes in all"),
        (
            "MAX_BUNDLE_BYTES",
            60_000,
            lambda: BUNDLE | {"zz.yaml": "# " + "é" * 50_000},
            "larger than 60000 bytes in all",
        ),
        ("MAX_FILES", 4, lambda: BUNDLE, "has 5 files"),
        ("MAX_DOCUMENTS", 10, lambda: BUNDLE, "more than 10 documents in all; make the bundle smaller"),
    ],
)
def test_values_beyond_their_bounds_are_refused(
    monkeypatch: pytest.MonkeyPatch, bound: str, value: int, files: Callable[[], dict[str, str]], problem: str
) -> None:
    monkeypatch.setattr(compiler, bound, value)
    assert any(problem in error for error in refused(files()))


def test_foreign_files_are_ignored_or_refused_as_in_a_folder() -> None:
    assert compile_bundle(BUNDLE | {"README.md": "# [", ".hidden.yaml": "["}) == compile_bundle(BUNDLE)
    remedy = "name policy files *.yaml, and keep anything else out of the folder"
    assert refused(BUNDLE | {"rules.yml": ""}) == [f"rules.yml: is not a .yaml file; {remedy}"]


def many(kind: str, number: int, fields: str) -> str:
    return "---\n".join(f"apiVersion: penstock/v1\nkind: {kind}\nname: t{i}\n{fields}" for i in range(number))


def test_a_bundle_with_too_many_errors_is_not_checked_to_its_end() -> None:
    errors = refused(BUNDLE | {"zz.yaml": many("Tenant", MAX_ERRORS, "extra: 1\n")})
    assert len(errors) < MAX_ERRORS + 10
    remedy = "correct these first; the rest of the bundle was not checked"
    assert f"(bundle): {MAX_ERRORS} errors or more; {remedy}" in errors


def test_too_many_documents_of_a_kind_are_one_error() -> None:
    most = KINDS["Bloc"].max_count
    errors = refused({"zz.yaml": many("Bloc", most + 50, "members: [DE]\nextra: 1\n")})
    assert sum("too many documents of kind Bloc" in error for error in errors) == 1
    assert sum("extra: is not a known field" in error for error in errors) == most


def test_only_the_first_unknown_names_get_a_suggestion() -> None:
    unknown = ", ".join(f"onee{i}" for i in range(2 * MAX_SUGGESTIONS))
    errors = refused(changed("residency.yaml", "data_classes: [personal]", f"tenants: [{unknown}]"))
    assert sum("did you mean one?" in error for error in errors) <= MAX_SUGGESTIONS
    assert sum("there is no Tenant onee" in error for error in errors) == 2 * MAX_SUGGESTIONS


def test_duplicates_are_found_in_linear_time() -> None:
    compared = []

    class Item(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return super().__eq__(other)

        __hash__ = str.__hash__

    members = [Item(number) for number in range(1_000)]
    content = {"apiVersion": API_VERSION, "kind": "Bloc", "name": "EU", "members": members}
    assert read_struct(Document("blocs.yaml", YamlDocument(1, content, {})), "Bloc").errors == []
    assert len(compared) < 10 * len(members)


def test_a_policy_too_large_for_the_store_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
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
            "match: is not a mapping; write its fields below it, indented",
        ),
        ("countries: [EEA]", "countries: EEA", "match.countries: is not a list; write it as one, such as [a, b]"),
        (
            "allow:\n  jurisdictions: [EU]",
            "allow:",
            "allow: is blank; write its value, or remove the field to use its default",
        ),
    ],
)
def test_blank_values_and_wrong_types_are_named_in_yaml_terms(old: str, new: str, error: str) -> None:
    assert error in "\n".join(refused(changed("residency.yaml", old, new)))


def test_a_reference_to_an_invalid_document_is_no_error() -> None:
    for old, new in (("kind: Region", "kind: Regoin"), ("city: Frankfurt", "\tcity: Frankfurt")):
        errors = refused({**BUNDLE, "places.yaml": BUNDLE["places.yaml"].replace(old, new)})
        assert not [error for error in errors if "has no document of kind" in error]


def test_an_unknown_jurisdiction_is_one_error() -> None:
    errors = refused(changed("residency.yaml", "jurisdictions: [EU]", "jurisdictions: [USA]"))
    assert not [error for error in errors if "allows no region" in error]
    assert len(errors) == 1


def test_terminal_control_characters_are_escaped() -> None:
    name = "a\x1b[31m\u202e"
    text = BUNDLE["senders.yaml"].replace("name: one", 'name: "a\\e[31m\\u202e"')
    errors = refused({**BUNDLE, "senders.yaml": text, "again.yaml": text})
    assert any("a\\x1b[31m\\u202e exists already" in error for error in errors)
    assert not any(name in error for error in errors)
