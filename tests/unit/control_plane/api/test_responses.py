"""Malformed requests: problem responses that name the valid input."""

from __future__ import annotations

from typing import Annotated

import httpx
import msgspec
import pytest
from fastapi import Depends, FastAPI
from pydantic import BaseModel

from control_plane.api import responses
from control_plane.api.json_bodies import JsonBody


class Order(BaseModel):
    """The request body of the API under test."""

    reason: str


OrderBody = Annotated[Order, Depends(JsonBody(Order).read)]


@pytest.fixture
def api() -> httpx.AsyncClient:
    app = FastAPI()
    responses.install_error_handlers(app)

    @app.post("/orders")
    async def order(body: OrderBody) -> str:
        """Take an order."""
        return body.reason

    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api")


@pytest.mark.parametrize(
    ("content", "kind", "status", "detail"),
    [
        (b'{"reason": "x"}', "application/json; charset=utf-8", 200, ""),
        (b'{"reason": "x"}', "application/merge-patch+json", 200, ""),
        (
            b'{"reason": "x"}',
            "application/x-www-form-urlencoded",
            415,
            "the content type is application/x-www-form-urlencoded: send JSON, with `content-type: application/json",
        ),
        (b'{"reason": "x"}', "text/plain", 415, "the content type is text/plain: send JSON"),
        (b'{"reason"', "application/json", 422, "body: is not JSON: Expecting ':' delimiter at character 9"),
        (b"[]", "application/json", 422, "body: Input should be a valid dictionary"),
        (b'{"why": "x"}', "application/json", 422, "body.reason: Field required"),
        (b"", "text/plain", 422, "body: Field required"),
    ],
)
async def test_an_invalid_body_is_a_problem_response(
    api: httpx.AsyncClient, content: bytes, kind: str, status: int, detail: str
) -> None:
    answer = await api.post("/orders", content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.headers["content-type"] == responses.PROBLEM_JSON
        assert msgspec.json.decode(answer.content)["detail"].startswith(detail)
