"""An API server with the documented list and watch protocol of Kubernetes over HTTPS, which accepts one token.

Lists have pages and a resource version. Watches send the changes after a resource version, bookmarks that a test
creates, and 410 for a version whose history was compacted. Label and field selectors that agents use are supported.
"""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support.identities import START, YEAR_S, authority, control_plane_id
from tests.support.loopback_server import LoopbackServer

Object = dict[str, Any]


class KubernetesServer(LoopbackServer):
    """Serves objects that a test stores, to clients with the token."""

    def __init__(self, directory: Path) -> None:
        self.token = "token-1"
        self.token_file = directory / "token"
        self.token_file.write_text(self.token + "\n")
        key, certificate = authority().issue(control_plane_id("api"), ("127.0.0.1", "localhost"), START, YEAR_S)
        self.ca_file = directory / "ca.crt"
        self.ca_file.write_bytes(authority().pem)
        (directory / "api.crt").write_bytes(certificate)
        (directory / "api.key").write_bytes(key)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(directory / "api.crt", directory / "api.key")
        super().__init__(tls)
        self.status = 200
        """Status of every response."""
        self.lists: list[str] = []
        """Listed collections, in order of the requests for their first pages."""
        self.pages = 0
        self.watches: list[str] = []
        """Resource versions from which watches started."""
        self.tokens: set[str] = set()
        self.error_event: Object | None = None
        """First event of the next watch."""
        self._objects: dict[tuple[str, str], Object] = {}
        self._history: list[tuple[int, str, str, Object, Object | None]] = []
        self._version = 100
        self._oldest = 100
        self._changed = asyncio.Condition()
        self._bookmarks = 0
        self._ends = 0

    # content

    async def put(self, path: str, item: Object) -> None:
        """Create or replace an object of a collection."""
        key = (path, item["metadata"]["name"])
        before = self._objects.get(key)
        stored = copy.deepcopy(item)
        await self._record("MODIFIED" if before else "ADDED", path, stored, before)
        self._objects[key] = stored

    async def delete(self, path: str, name: str) -> None:
        item = copy.deepcopy(self._objects.pop((path, name)))
        await self._record("DELETED", path, item, item)

    async def bookmark(self) -> str:
        """Advance the resource version, send a bookmark to each watch, and return the version."""
        self._version += 1
        async with self._changed:
            self._bookmarks += 1
            self._changed.notify_all()
        return str(self._version)

    async def end_watches(self) -> None:
        """End every watch, as after its timeout."""
        async with self._changed:
            self._ends += 1
            self._changed.notify_all()

    def compact(self) -> None:
        """Discard the history."""
        self._version += 1
        self._oldest = self._version
        self._history.clear()

    def wipe(self) -> None:
        """Delete all objects without an event, as after a replacement of etcd."""
        self._objects.clear()
        self.compact()

    async def _record(self, kind: str, path: str, item: Object, before: Object | None) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, path, item, before))
        async with self._changed:
            self._changed.notify_all()

    # HTTP

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
                await self._answer(first.split(" ")[1], headers, writer)

    async def _answer(self, target: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        self.tokens.add(token)
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        if token != self.token:
            await _send(writer, 401, _failure(401, "Unauthorized"))
        elif self.status != 200:
            await _send(writer, self.status, _failure(self.status, "unavailable"))
        elif query.get("watch") == "true":
            await self._watch(parts.path, query, writer)
        else:
            await self._list(parts.path, query, writer)

    async def _list(self, path: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if "continue" not in query:
            self.lists.append(path)
        self.pages += 1
        items = [item for (of, _), item in sorted(self._objects.items()) if of == path and _selected(item, query)]
        begin, limit = int(query.get("continue", "0")), int(query["limit"])
        metadata = {"resourceVersion": str(self._version)}
        if begin + limit < len(items):
            metadata["continue"] = str(begin + limit)
        await _send(writer, 200, {"kind": "List", "metadata": metadata, "items": items[begin : begin + limit]})

    async def _watch(self, path: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        after = int(query["resourceVersion"])
        self.watches.append(query["resourceVersion"])
        assert query["allowWatchBookmarks"] == "true"
        if after < self._oldest:
            await _send(writer, 410, _failure(410, "too old resource version"))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        bookmarks, ends = self._bookmarks, self._ends
        if self.error_event is not None:
            _chunk(writer, {"type": "ERROR", "object": self.error_event})
            self.error_event, ends = None, ends - 1
        ended = False
        while not ended:
            ended = ends != self._ends
            for version, kind, of, item, before in self._history:
                if version > after and of == path:
                    now, was = _selected(item, query), before is not None and _selected(before, query)
                    if now or was:
                        # For a watch, an object that the selector no longer matches is deleted.
                        kind = kind if now and (was or kind == "DELETED") else "ADDED" if now else "DELETED"
                        _chunk(writer, {"type": kind, "object": item})
            after = self._version
            if bookmarks != self._bookmarks:
                bookmarks = self._bookmarks
                _chunk(writer, {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(after)}}})
            await writer.drain()
            async with self._changed:
                if not ended and after == self._version and ends == self._ends and bookmarks == self._bookmarks:
                    await self._changed.wait()
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _selected(item: Object, query: dict[str, str]) -> bool:
    wanted = [term.split("=", 1) for term in query.get("labelSelector", "").split(",") if term]
    labels = item["metadata"].get("labels", {})
    name = query.get("fieldSelector", "").removeprefix("metadata.name=")
    return all(labels.get(key) == value for key, value in wanted) and name in ("", item["metadata"]["name"])


def _failure(code: int, message: str) -> Object:
    return {"kind": "Status", "status": "Failure", "message": message, "code": code}


def _chunk(writer: asyncio.StreamWriter, event: Object) -> None:
    line = json.dumps(event).encode() + b"\n"
    writer.write(b"%x\r\n%b\r\n" % (len(line), line))


async def _send(writer: asyncio.StreamWriter, status: int, body: Object) -> None:
    content = json.dumps(body).encode()
    writer.write(
        b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(content))
    )
    writer.write(content)
    await writer.drain()
