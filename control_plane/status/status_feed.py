"""The status as a feed: read once a second while it has followers; after the first update, only changed parts are sent.

All followers share one read and one encoding, so an open page costs one write per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import msgspec
import structlog

from control_plane.api.serving.api_threads import in_api_thread
from control_plane.status.status import ArcStatus, Status

INTERVAL_S = 1.0
"""Time (s) between two reads."""

_SPLIT = frozenset({"regions", "arcs"})
"""Fields of a status that have a part for each region, as `regions/<name>` and `arcs/<origin>`."""

_log = structlog.get_logger(__name__)


class StatusUpdate(msgspec.Struct, frozen=True):
    """The changes of the status."""

    parts: dict[str, msgspec.Raw]
    """The changed parts by name: a field of the status, `regions/<name>`, or `arcs/<origin>`."""
    gone: tuple[str, ...]
    """Names of parts that no longer exist."""


class StatusFeed:
    """Reads the status while it has followers.

    Args:
        read: returns the status.
        on_update: called after each read.
    """

    def __init__(self, read: Callable[[], Awaitable[Status]], on_update: Callable[[], None]) -> None:
        self._read = read
        self._on_update = on_update
        self._followers = 0
        self._task: asyncio.Task[None] | None = None
        self._parts: dict[str, tuple[int, bytes | None]] = {}
        """By name: the version in which the part last changed, and its content; None if the part no longer exists."""
        self._updates: dict[int, bytes] = {}
        """Encoded updates to the current version, by the version that the follower has."""
        self.version = 0
        """Increases by one with each successful read."""

    @contextmanager
    def following(self) -> Iterator[None]:
        """Keep the feed running inside the context; without followers, the status is not read."""
        self._followers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._keep_reading(), name="status feed")
        try:
            yield
        finally:
            self._followers -= 1
            if self._followers == 0 and self._task is not None:
                self._task.cancel()
                self._task = None
                # Parts are discarded, so that the next follower receives no part that is older than its request.
                self._parts.clear()
                self._updates.clear()

    def has_news(self, version: int) -> bool:
        """Whether the status was read after a version."""
        return bool(self._parts) and self.version > version

    def since(self, version: int) -> bytes:
        """Return a StatusUpdate in JSON: the parts that changed after a version; after version 0, all parts."""
        if version not in self._updates:
            changed = {name: content for name, (at, content) in self._parts.items() if at > version}
            parts = {name: msgspec.Raw(content) for name, content in changed.items() if content is not None}
            gone = tuple(name for name, content in changed.items() if content is None and version > 0)
            self._updates[version] = msgspec.json.encode(StatusUpdate(parts, gone))
        return self._updates[version]

    async def _keep_reading(self) -> None:
        while True:
            await asyncio.gather(self._read_once(), asyncio.sleep(INTERVAL_S))

    async def _read_once(self) -> None:
        try:
            status = await self._read()
            self._publish(await in_api_thread(lambda: _encode_parts(status)))
        except Exception:
            # The feed continues, because the next read may succeed; followers detect that updates are missing.
            _log.exception("the status could not be read")

    def _publish(self, parts: dict[str, bytes]) -> None:
        self.version += 1
        for name, content in parts.items():
            if self._parts.get(name, (0, None))[1] != content:
                self._parts[name] = self.version, content
        for name, (_, before) in self._parts.items():
            if before is not None and name not in parts:
                self._parts[name] = self.version, None
        self._updates.clear()
        self._on_update()


def _encode_parts(status: Status) -> dict[str, bytes]:
    arcs: dict[str, list[ArcStatus]] = {}
    for arc in status.arcs:
        arcs.setdefault(arc.origin, []).append(arc)
    encode = msgspec.json.Encoder().encode
    return {
        **{name: encode(getattr(status, name)) for name in status.__struct_fields__ if name not in _SPLIT},
        **{f"regions/{region.name}": encode(region) for region in status.regions},
        **{f"arcs/{origin}": encode(found) for origin, found in arcs.items()},
    }
