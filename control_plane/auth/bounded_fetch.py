"""Requests to the identity provider: limited in time and size, without redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx

FETCH_TIMEOUT_S = 3.0
MAX_RESPONSE_BYTES = 256 * 1024


async def fetch(
    http: httpx.AsyncClient,
    url: str,
    form: Mapping[str, str] | None = None,
    auth: httpx.Auth | None = None,
) -> tuple[int, bytes]:
    """Return status and body of a response; with `form` by POST, else by GET.

    Raises:
        ValueError: the response did not arrive in time or is too large, or the request failed; the message has the
            reason, and nothing of the form.
    """
    body = bytearray()
    method = "GET" if form is None else "POST"
    headers = {"accept": "application/json"}
    try:
        async with (
            asyncio.timeout(FETCH_TIMEOUT_S),
            http.stream(method, url, headers=headers, data=form, auth=auth) as response,
        ):
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise ValueError(f"the response is larger than {MAX_RESPONSE_BYTES} bytes")
            return response.status_code, bytes(body)
    except TimeoutError:
        raise ValueError(f"no response within {FETCH_TIMEOUT_S:.0f} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(str(error) or repr(error)) from None
