"""The list and watch requests of the Kubernetes API, with the token and the authorities of a service account.

The token is read again for each request, because the kubelet replaces tokens. The authorities are reloaded when they
change. A token is sent only over TLS.
Source: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from adapters.files.plain_file import ThreadedRead, UnusableFile
from adapters.files.secret_file import read_file
from adapters.tls_contexts import ClientTls
from penstock.http.header_rules import Header
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.http_lines import RefusedStream, stream_lines
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

PAGE_OBJECTS: Final = 100
"""Maximum number of objects on one page of a list."""
MAX_PAGE_BYTES: Final = 16 * 1024 * 1024
MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of one event of a watch; etcd stores objects of up to 1.5 MiB."""
LIST_TIMEOUT_S: Final = 30.0
WATCH_S: Final = 300.0
"""Time (s) after which the server ends a watch; client-go uses 5 to 10 minutes."""
SILENCE_S: Final = WATCH_S + 30.0
"""Time (s) without an event, and without an end, after which a watch has failed."""

GONE: Final = 410

T = TypeVar("T")


class KubernetesError(Exception):
    """A request or its response failed. The message states the remedy, if one is known."""


class Expired(KubernetesError):
    """The resource version is too old (410 Gone): a new list is required."""


class ObjectList(msgspec.Struct, frozen=True):
    """All objects of a list, not yet decoded."""

    resource_version: str
    items: tuple[msgspec.Raw, ...]


class Event(msgspec.Struct, frozen=True):
    """One event of a watch."""

    type: str
    object: msgspec.Raw


OPENED: Final = Event("OPENED", msgspec.Raw(b"{}"))
"""The first event of each watch: the API server has accepted the watch."""


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Status(msgspec.Struct, frozen=True):
    message: str = ""
    reason: str = ""
    code: int = 0


class KubernetesApi:
    """A client of one API server, with the credentials of one service account."""

    def __init__(self, server: Address, token_file: Path, ca_file: Path) -> None:
        """Create a client, without reading a file or opening a connection.

        Args:
            server: address of the API server; always with TLS.
            token_file: token of the service account, read again for each request.
            ca_file: authorities that sign the server's certificate, read again when they change.
        """
        self._server = server
        self._token_file = token_file
        self._ca_file = ca_file
        self._tls: ClientTls | None = None
        self._pool: UpstreamPool | None = None
        self._in_thread = ThreadedRead(self._prepare, str(token_file))

    def close(self) -> None:
        """Close idle connections."""
        if self._pool is not None:
            self._pool.close()

    async def list_objects(self, path: str, selection: Mapping[str, str], max_objects: int) -> ObjectList:
        """List all objects of a collection, page by page.

        Args:
            path: path of the collection.
            selection: query parameters that select objects.
            max_objects: maximum number of objects that is accepted.

        Raises:
            KubernetesError: the list failed, or is too long.
        """
        items: list[msgspec.Raw] = []
        page_token = ""
        while True:
            query = {**selection, "limit": str(PAGE_OBJECTS), **({"continue": page_token} if page_token else {})}
            page = await self._page(path, query)
            items += page.items or ()
            if len(items) > max_objects:
                raise KubernetesError(f"more than {max_objects} objects; select fewer")
            page_token = page.metadata.continue_
            if not page_token:
                return ObjectList(page.metadata.resource_version, tuple(items))

    async def watch(
        self, path: str, selection: Mapping[str, str], resource_version: str
    ) -> AsyncGenerator[Event, None]:
        """Yield OPENED, then the events after `resource_version`, bookmarks included, until the server ends the watch.

        Raises:
            KubernetesError: the watch failed; Expired if the resource version is too old.
        """
        query = {
            **selection,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": f"{WATCH_S:.0f}",
        }
        pool, headers = await self._prepared()
        target = _target(path, query)
        try:
            async for line in stream_lines(
                pool,
                self._server,
                target,
                headers=headers,
                silence_s=SILENCE_S,
                max_line_bytes=MAX_EVENT_BYTES,
            ):
                event = decoded(line, Event) if line else OPENED
                if event.type == "ERROR":
                    status = decoded(event.object, _Status)
                    raise self._refused(status.code, status)
                yield event
        except RefusedStream as refused:
            raise self._refused(refused.status, _status(refused.body)) from None
        except UpstreamError as error:
            raise KubernetesError(str(error)) from None

    async def _page(self, path: str, query: Mapping[str, str]) -> _Page:
        pool, headers = await self._prepared()
        try:
            answer = await fetch(
                pool,
                self._server,
                FetchRequest(_target(path, query), headers),
                timeout_s=LIST_TIMEOUT_S,
                limit_bytes=MAX_PAGE_BYTES,
            )
        except UpstreamError as error:
            raise KubernetesError(str(error)) from None
        if answer.status != 200:
            raise self._refused(answer.status, _status(answer.body))
        page = decoded(answer.body, _Page)
        if not page.metadata.resource_version:
            raise KubernetesError("the list has no resource version")
        return page

    async def _prepared(self) -> tuple[UpstreamPool, list[Header]]:
        try:
            return await self._in_thread()
        except UnusableFile as error:
            raise KubernetesError(str(error)) from None

    def _prepare(self) -> tuple[UpstreamPool, list[Header]]:
        """Return the connections and the headers of a request, by the current files. Blocks."""
        try:
            if self._tls is None:
                self._tls = ClientTls(self._ca_file)
            self._tls.files.reload_if_changed()
            token = read_file(self._token_file, "token of the service account", "mount one there", public=True).strip()
        except UnusableFile as error:
            raise KubernetesError(str(error)) from None
        if not token or not token.isascii() or any(byte <= 32 or byte == 127 for byte in token):
            raise KubernetesError(f"{self._token_file}: holds no token; mount that of a service account")
        if self._pool is None:
            self._pool = UpstreamPool(self._tls)
        return self._pool, [(b"authorization", b"Bearer " + token), (b"accept", b"application/json")]

    def _refused(self, status: int, answer: _Status) -> KubernetesError:
        detail = f": {answer.message[:200]}" if answer.message else ""
        if status == GONE or answer.reason == "Expired":
            return Expired(f"the resource version is too old{detail}")
        remedy = {
            401: f"; put a valid token into {self._token_file}",
            403: "; grant the service account list and watch of this resource",
            404: "; the API server does not have this resource, or this namespace",
        }.get(status, "")
        return KubernetesError(f"the API server answers {status}{detail}{remedy}")


def decoded(content: bytes | msgspec.Raw, kind: type[T]) -> T:
    """Decode data that the API server sent; raises KubernetesError if the data is invalid."""
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise KubernetesError(f"the API server sent no valid {kind.__name__.strip('_')}: {error}") from None


def _status(body: bytes) -> _Status:
    try:
        return msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Status()


def _target(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query, quote_via=quote)}"
