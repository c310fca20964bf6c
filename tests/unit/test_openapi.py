"""The API describes itself: every operation with a summary, a tag, what it answers, and how it refuses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from control_plane import problems
from control_plane.api.openapi import TAGS
from control_plane.app import OPEN
from tests.unit.test_control_plane_app import control_plane, http

__all__ = ["control_plane", "http"]


@pytest.fixture
async def document(http: httpx.AsyncClient) -> dict[str, Any]:
    response = await http.get("/openapi.json")
    assert response.status_code == 200
    document: dict[str, Any] = response.json()
    return document


async def test_every_operation_says_what_it_does(document: dict[str, Any]) -> None:
    ids = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            where = f"{method} {path}"
            assert operation["summary"], where
            assert not operation["summary"].endswith("."), where
            assert set(operation["tags"]) <= set(TAGS), where
            assert operation["operationId"] not in ids, where
            ids.add(operation["operationId"])
            answers = {status: one for status, one in operation["responses"].items() if status.startswith("2")}
            assert answers, where
            for status, one in answers.items():
                assert status == "204" or one["content"], f"{where}: say what it answers with `responses=gives(...)`"
            assert problems.MEDIA_TYPE in operation["responses"]["default"]["content"], where
            assert ("security" in operation) is (path not in OPEN), where


async def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    def references(part: Any) -> set[str]:
        if isinstance(part, dict):
            own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
            return own.union(*(references(one) for one in part.values()))
        return set().union(*(references(one) for one in part)) if isinstance(part, list) else set()

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known
    assert "x-components" not in str(document)
