"""Sends one webhook: to an address that was checked, without redirects, in bounded time and memory."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from penstock.jobs.webhook import Networks, WebhookUrl, refuse_address

TIMEOUT_S: Final = 10.0
"""Time (s) for name resolution, connection, request and the first line of the response."""

MAX_LINE_BYTES: Final = 8192
"""Bytes of the response that are read: its first line."""

_threads: Final = ThreadPoolExecutor(32, thread_name_prefix="webhook-dns")
"""Threads of their own: a slow name server of a tenant must not delay what else the agent resolves."""

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Returns the addresses of a host."""


class WebhookFailed(Exception):
    """The receiver did not accept the webhook. The message has no path, which may be secret."""


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().run_in_executor(
        _threads, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    )
    return list(dict.fromkeys(str(address[0]) for _, _, _, _, address in found))


class WebhookClient:
    """Sends webhooks."""

    def __init__(self, tls: Callable[[], ssl.SSLContext], resolve: Resolve = resolve) -> None:
        """Send webhooks; `tls` returns the TLS settings, and `resolve` the addresses of hosts."""
        self._tls = tls
        self._resolve = resolve

    async def post(self, url: WebhookUrl, headers: dict[str, str], body: bytes, networks: Networks) -> None:
        """Send a webhook; returns when the receiver has accepted it with a status from 200 to 299.

        Args:
            networks: see `refuse_address`. The addresses of the host are checked, and the first one of them is
                connected to: a later answer of the name server has no effect.

        Raises:
            WebhookFailed: the receiver did not accept it.
        """
        try:
            async with asyncio.timeout(TIMEOUT_S):
                status = await self._post(url, headers, body, networks)
        except TimeoutError:
            raise WebhookFailed(f"no response within {TIMEOUT_S:g} s") from None
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise WebhookFailed(f"{type(error).__name__}: {str(error)[:200]}") from None
        if not 200 <= status < 300:
            raise WebhookFailed(f"status {status}")

    async def _post(self, url: WebhookUrl, headers: dict[str, str], body: bytes, networks: Networks) -> int:
        addresses = await self._resolve(url.host, url.port)
        for address in addresses:
            if problem := refuse_address(address, networks, is_secure=url.is_secure):
                raise WebhookFailed(problem)
        if not addresses:
            raise WebhookFailed("the host has no address")
        host = f"[{url.host}]" if ":" in url.host else url.host
        lines = [f"POST {url.target} HTTP/1.1", f"host: {host}:{url.port}", "connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        head = "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode("latin-1")
        tls = self._tls() if url.is_secure else None
        reader, writer = await asyncio.open_connection(
            addresses[0],
            url.port,
            ssl=tls,
            server_hostname=url.host if tls is not None else None,
            limit=MAX_LINE_BYTES,
        )
        try:
            writer.write(head + body)
            await writer.drain()
            line = await reader.readuntil(b"\r\n")
        finally:
            writer.transport.abort()
        version, _, status = line.decode("latin-1").partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError("the response is not HTTP")
        return int(status[:3])
