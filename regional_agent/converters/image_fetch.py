"""Fetches an input image by its URL: with https from a public address that was checked, without redirects."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.converters.comfyui import BadWorkflow
from penstock.converters.comfyui_input_images import MAX_IMAGE_BYTES, MEMBER, InputImage
from penstock.jobs.webhook import parse_url
from penstock.wire.reserved_addresses import is_public, is_reserved
from regional_agent.jobs.webhooks.webhook_request import resolve
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

TIMEOUT_S = 20.0
"""Time (s) for name resolution, connection and response."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host."""


class ImageFetch:
    """Fetches images. The client chose their URLs: they must not reach what only this agent reaches."""

    def __init__(
        self,
        resolve: Resolve = resolve,
        pool: Callable[[], UpstreamPool] = UpstreamPool,
        is_permitted: Callable[[str], bool] = lambda address: is_public(address) and not is_reserved(address),
    ) -> None:
        """Create a fetcher without connections.

        Args:
            pool: creates the pool of one connection, which verifies the certificate of the host.
            is_permitted: whether a connection to an address is permitted.
        """
        self._resolve = resolve
        self._pool = pool
        self._is_permitted = is_permitted

    async def content(self, image: InputImage) -> bytes:
        """Return the content of an image; raises BadWorkflow if it cannot be fetched. The message has no path."""
        url = parse_url(image.url)
        if url is None or not url.is_secure:
            raise BadWorkflow(f"`{MEMBER}`: the url of {image.name} must begin with https://")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                addresses = await self._resolve(url.host, url.port)
                if not addresses or not all(self._is_permitted(address) for address in addresses):
                    raise BadWorkflow(
                        f"`{MEMBER}`: the host of {image.name} has an address that is not public, or none"
                    )
                # The checked address, so that a later answer of the name server has no effect.
                address = Address(addresses[0], url.port, tls=True, server_name=url.host)
                pool = self._pool()
                try:
                    found = await fetch(
                        pool, address, FetchRequest(url.target), timeout_s=TIMEOUT_S, limit_bytes=MAX_IMAGE_BYTES
                    )
                finally:
                    pool.close()
        except (OSError, TimeoutError, UpstreamError, UnicodeError) as error:
            raise BadWorkflow(f"`{MEMBER}`: {image.name} cannot be fetched: {type(error).__name__}") from None
        if found.status != 200:
            raise BadWorkflow(f"`{MEMBER}`: {image.name} cannot be fetched: status {found.status}")
        return found.body
