"""Requests to URLs that policy or settings name: limited in time and size, without redirects, and apart from others."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Hashable, Mapping
from typing import Any, NamedTuple

import httpx
import structlog

FETCH_TIMEOUT_S = 3.0
MAX_RESPONSE_BYTES = 256 * 1024
MAX_ETAG_CHARS = 256

_ACCEPT = {"accept": "application/json", "accept-encoding": "identity"}
"""Compressed responses are refused: kilobytes can decompress to gigabytes in one step, which stops the event loop."""

_log = structlog.get_logger(__name__)


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
    fetched = await _fetch(http, url, _ACCEPT, form, auth)
    return fetched.status, fetched.body


class Fetched(NamedTuple):
    """A response."""

    status: int
    body: bytes
    etag: str
    """Value of the ETag header; empty without one that can be sent back."""


async def fetch_changed(http: httpx.AsyncClient, url: str, etag: str) -> Fetched:
    """Return a response to GET; with the status 304 if the resource still has `etag` (RFC 9110, section 13.1.2).

    Args:
        etag: that of the last response; empty for none.

    Raises:
        ValueError: the response did not arrive in time or is too large, or the request failed.
    """
    return await _fetch(http, url, {**_ACCEPT, "if-none-match": etag} if etag else _ACCEPT)


async def _fetch(
    http: httpx.AsyncClient,
    url: str,
    headers: Mapping[str, str],
    form: Mapping[str, str] | None = None,
    auth: httpx.Auth | None = None,
) -> Fetched:
    """Send a request.

    Raises:
        ValueError: the response did not arrive in time or is too large, or the request failed; the message has the
            reason, and nothing of the form.
    """
    body = bytearray()
    method = "GET" if form is None else "POST"
    try:
        async with (
            asyncio.timeout(FETCH_TIMEOUT_S),
            http.stream(method, url, headers=headers, data=form, auth=auth) as response,
        ):
            coding = response.headers.get("content-encoding", "identity")
            if coding.lower() != "identity":
                raise ValueError(f"the response has the content coding {coding!r:.80}, which was not asked for")
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > MAX_RESPONSE_BYTES:
                    raise ValueError(f"the response is larger than {MAX_RESPONSE_BYTES} bytes")
            etag = response.headers.get("etag", "")
            # A tag in another character set could not be sent back, and a cut one would match nothing.
            usable = etag.isascii() and len(etag) <= MAX_ETAG_CHARS
            return Fetched(response.status_code, bytes(body), etag if usable else "")
    except TimeoutError:
        raise ValueError(f"no response within {FETCH_TIMEOUT_S:.0f} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(str(error) or repr(error)) from None


class SeparateFetches:
    """Fetches in tasks of their own, at most one of each source at a time: a source that does not respond delays no
    other one."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}

    def is_running(self, source: Hashable) -> bool:
        """Whether a fetch of a source has started and not ended."""
        return source in self._tasks

    def start(self, source: Hashable, fetching: Coroutine[Any, Any, None]) -> None:
        """Start a fetch of a source of which none is running; an exception is logged."""
        task = self._tasks[source] = asyncio.create_task(fetching, name=f"fetch {source}")
        task.add_done_callback(lambda ended: self._end(source, ended))

    async def wait(self) -> None:
        """Wait until no fetch is running."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks.values()))

    async def close(self) -> None:
        """Cancel all fetches."""
        for task in self._tasks.values():
            task.cancel()
        await self.wait()

    def _end(self, source: Hashable, ended: asyncio.Task[None]) -> None:
        del self._tasks[source]
        if not ended.cancelled() and (error := ended.exception()) is not None:
            _log.error("fetch failed", source=source, exc_info=error)
