"""Responses of URLs that policy or settings name are limited before they are decoded."""

from __future__ import annotations

import httpx
import pytest

from control_plane.auth.bounded_fetch import fetch
from tests.support.codings import gzipped


@pytest.mark.parametrize("coding", ["gzip", "gzip, gzip", "GZIP"])
async def test_a_compressed_response_is_refused_since_its_size_is_unknown(coding: str) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.headers["accept-encoding"])
        body = b"{}"
        for _ in coding.split(","):
            body = gzipped(body)
        return httpx.Response(200, headers={"content-encoding": coding}, content=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        with pytest.raises(ValueError, match=r"(?i)content coding 'gzip"):
            await fetch(http, "https://signal.example/")
    assert asked == ["identity"]
