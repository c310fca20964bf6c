"""Documents, schema and stored policies have the same fields, and the limits of documents bind no stored policy."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.inspect import type_info
from msgspec.structs import replace

from adapters.configuration.strict_yaml import YamlDocument
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.document_fields import document_fields, mark
from control_plane.policy.documents import Document
from control_plane.policy.kinds import API_VERSION, KINDS
from control_plane.policy.schema import schema
from control_plane.policy.struct_reader import read_struct
from penstock.policy import fields
from penstock.policy.kinds.operations import Objective
from penstock.policy.policy import Policy
from tests.support import planet
from tests.support.policy_bundle import BUNDLE

SINGLE = sorted(name for name, kind in KINDS.items() if kind.max_count == 1)


def test_every_field_has_a_description() -> None:
    for name, definition in schema()["$defs"].items():
        for field, written in definition.get("properties", {}).items():
            assert field == "kind" or written["description"], f"{name}.{field}"


def test_the_schema_has_the_fields_that_documents_may_have() -> None:
    definitions = schema()["$defs"]
    for kind in KINDS.values():
        written = definitions[kind.struct.__name__]["properties"].keys() - {"apiVersion", "kind", "description"}
        assert written == document_fields(kind.struct).keys()
    assert "jurisdictions" not in definitions["Region"]["properties"]
    assert "planner" not in definitions["Objective"]["properties"]


def test_fields_refer_to_kinds_that_exist() -> None:
    places = {fields.COUNTRY, fields.PLACE, fields.SUBDIVISION}
    marked = {name: mark(type_info(type_), "refers_to") for name, type_ in vars(fields).items() if name.endswith("Ref")}
    assert marked["RegionRef"] == "Region"
    assert set(marked.values()) <= KINDS.keys() | places


@pytest.mark.parametrize("kind", SINGLE)
def test_a_document_without_fields_has_the_defaults_of_its_struct(kind: str) -> None:
    content = {"apiVersion": API_VERSION, "kind": kind}
    found = read_struct(Document("x.yaml", YamlDocument(1, content, {})), kind)
    assert found == (KINDS[kind].struct(), [], [])


@pytest.mark.parametrize(
    "written", ["usage: {objects: [/usage]}\n", "methods: [POST]\n", "session: []\n", "timeouts: {}\n"]
)
def test_a_value_that_equals_the_default_does_not_change_the_digest(written: str) -> None:
    route = "apiVersion: penstock/v1\nkind: Route\nname: r\npath: /r\nmodel: [{source: json, name: /model}]\n"
    absent, present = (compile_bundle(BUNDLE | {"r.yaml": route + text}) for text in ("", f"{written}\n"))
    assert present.digest() == absent.digest()


def test_whole_numbers_are_written_as_the_type_of_their_field() -> None:
    places = BUNDLE["places.yaml"].replace("latitude_deg: 50.11", "latitude_deg: 50")
    region = compile_bundle(BUNDLE | {"places.yaml": places}).regions["eu-de"]
    assert b'"latitude_deg":50.0' in msgspec.json.encode(region)


def test_bounds_of_documents_bind_no_stored_policy() -> None:
    policy = replace(planet.policy(), objective=Objective(queueing_weight=1e6, planner="waterfall"))
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Policy) == policy
