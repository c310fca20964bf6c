"""The OpenAPI document: every operation has a summary, a tag, its responses, and its errors."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from control_plane.api import responses
from control_plane.api.openapi import TAGS, DuplicateSchema, install_description, returns
from tests.support.api_app import OPERATOR

OPEN = {"/livez", "/readyz", "/v1/reports", "/v1/budget-leases", "/v1/policies/webhook", "/penstock/v1/identity"}
"""Paths that ask for no caller."""


@pytest.fixture
async def document(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get("/openapi.json")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


async def test_every_operation_has_a_description(document: dict[str, Any]) -> None:
    ids = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert not operation["summary"].endswith("."), where
            assert set(operation["tags"]) <= set(TAGS), where
            assert operation["operationId"] not in ids, where
            ids.add(operation["operationId"])
            answers = {
                status: response for status, response in operation["responses"].items() if status.startswith("2")
            }
            assert answers, where
            for status, response in answers.items():
                assert status == "204" or response["content"], (
                    f"{where}: say what it answers with `responses=returns(...)`"
                )
            assert responses.PROBLEM_JSON in operation["responses"]["default"]["content"], where
            assert ("security" in operation) is (path not in OPEN), where
            assert ("x-required-role" in operation) is (path not in OPEN), where


async def test_every_reference_can_be_resolved(document: dict[str, Any]) -> None:
    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
            return own.union(*(references(value) for value in part.values()))
        return set().union(*(references(item) for item in part)) if isinstance(part, list) else set()

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known
    assert "x-components" not in str(document)


async def test_no_two_types_share_a_name(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert schemas["OverrideState"]["enum"] != schemas["Phase"]["enum"]
    first = msgspec.defstruct("Answer", [("one", str)])
    second = msgspec.defstruct("Answer", [("another", str)])
    app = FastAPI()
    install_description(app)
    for path, type_ in (("/a", first), ("/b", second)):
        app.get(path, responses=returns(type_, "It."))(lambda: None)
    with pytest.raises(DuplicateSchema, match="two types are called Answer"):
        app.openapi()


async def test_undocumented_fields_and_parameters_are_refused(http: httpx.AsyncClient) -> None:
    refused = await http.get("/v1/agents", params={"regoin": "eu-de"}, headers=OPERATOR)
    assert (refused.status_code, refused.headers["content-type"]) == (422, responses.PROBLEM_JSON)
    assert refused.json()["errors"] == [
        {"field": "query.regoin", "problem": "unknown parameter; known: cursor, limit, region"}
    ]
    assert (await http.get("/v1/agents", params={"regoin": "eu-de"})).status_code == 401
    assert (await http.get("/v1/agents", params={"region": "eu-de"}, headers=OPERATOR)).status_code == 200
    assert (await http.get("/v1/whoami", params={"x": "1"}, headers=OPERATOR)).status_code == 422
    assert (await http.get("/livez", params={"x": "1"})).status_code == 200


async def test_every_method_of_a_path_is_listed(http: httpx.AsyncClient) -> None:
    for path, allowed in (
        ("/v1/overrides", "GET, POST"),
        ("/v1/overrides/x", "DELETE, GET, PUT"),
        ("/v1/plans/1", "GET"),
        ("/v1/policies/validate", "POST"),
    ):
        refused = await http.patch(path, headers=OPERATOR)
        assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
        assert refused.headers["content-type"] == responses.PROBLEM_JSON
    # A path with a parameter matches too, but this literal path takes precedence.
    refused = await http.get("/v1/policies/validate", headers=OPERATOR)
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
