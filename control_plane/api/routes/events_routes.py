"""`/v1/events`: a stream of server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

A client that reconnects with Last-Event-ID, to this or another control plane, receives every later event that is still
stored. A client that reads too slowly is disconnected, so that no events are buffered for it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Query, Response
from starlette.types import Receive, Scope, Send

from control_plane.api.openapi import returns
from control_plane.api.responses import Problem
from control_plane.auth.required_roles import Viewer
from control_plane.events.event_log import EventKind, EventLog, FleetEvent
from control_plane.status.status_feed import StatusFeed

MAX_STREAMS = 100
"""Maximum number of streams at a time. Each holds a connection."""

MAX_STREAMS_PER_CALLER = 50
"""Maximum number of streams of one caller. While MAX_STREAMS are open, a new stream replaces the oldest stream of the
caller with most streams, if the new stream's caller has at least two fewer streams."""

HEARTBEAT_S = 10.0
"""Interval (s) of the comment lines that an idle stream sends."""

SEND_TIMEOUT_S = 10.0
"""Time (s) without progress after which a client is disconnected."""

CATCH_UP_S = 2.0
"""Maximum time (s) to wait for the event of Last-Event-ID, which another control plane may have received earlier."""

RECONNECT_MS = 1_000

MAX_STATUS_S = 60.0
"""Time (s) after which a stream with the status ends. The client reconnects, which checks its credential again."""

MAX_STREAM_S = 900.0
"""Time (s) after which any other stream ends, for the same reason."""

EVENT_STREAM = "text/event-stream"

LastEventId = Annotated[
    str | None,
    Header(max_length=64, description="`id` of the last event received. Default: start with the next event."),
]
WithStatus = Annotated[
    bool,
    Query(
        alias="status",
        description="Also send the status once a second, without agents: events `status` with what changed. The first "
        "is complete. Such a stream ends after a minute, so that the credential is checked again.",
    ),
]
Kinds = Annotated[
    list[EventKind] | None, Query(max_length=len(EventKind), description="Limit to events of these kinds.")
]


def routes(events: EventLog, feed: StatusFeed) -> APIRouter:
    """Return the router of the event stream."""
    router = APIRouter(prefix="/v1/events", tags=["events"])
    streams = OpenStreams()

    @router.get(
        "", responses=returns(str, "A stream of events, each with an Event as its data.", media_type=EVENT_STREAM)
    )
    async def stream(
        caller: Viewer, last_event_id: LastEventId = None, kind: Kinds = None, with_status: WithStatus = False
    ) -> Response:
        """Stream events as they happen.

        The field `event` is the kind: leadership, region, plan, policy, rollout or audit. If some events since
        Last-Event-ID are no longer stored, the stream starts with an event `missed`: read the current state again.
        A stream ends after 15 minutes, so that the credential is checked again.
        Events without an id concern only the control plane that sends them; a stream cannot be resumed after them.
        """
        streams.make_room(caller.name)
        opened = EventStream(
            events,
            last_event_id,
            frozenset(kind or EventKind),
            on_close=streams.remove,
            feed=feed if with_status else None,
        )
        streams.add(opened, caller.name)
        return opened

    return router


class OpenStreams:
    """The open streams, oldest first, with the name of each caller."""

    def __init__(self) -> None:
        self._callers: dict[EventStream, str] = {}

    def make_room(self, caller: str) -> None:
        """Make room for another stream of a caller, if necessary by ending a stream of the caller with most streams.

        Raises:
            Problem: 429, the caller has too many streams; 503, too many are open, and no caller has at least two more.
        """
        counts = Counter(self._callers.values())
        if counts[caller] >= MAX_STREAMS_PER_CALLER:
            detail = f"{caller} has {MAX_STREAMS_PER_CALLER} open event streams, the maximum"
            raise Problem(429, detail, {"retry-after": "5"})
        if len(self._callers) < MAX_STREAMS:
            return
        largest, most = counts.most_common(1)[0]
        if most <= counts[caller] + 1:
            raise Problem(503, f"{MAX_STREAMS} event streams are open; try again later", {"retry-after": "5"})
        oldest = next(stream for stream, name in self._callers.items() if name == largest)
        self.remove(oldest)
        oldest.end()

    def add(self, stream: EventStream, caller: str) -> None:
        """Add a stream."""
        self._callers[stream] = caller

    def remove(self, stream: EventStream) -> None:
        """Remove a stream that has ended."""
        self._callers.pop(stream, None)


class EventStream(Response):
    """The response that streams events to one client.

    Args:
        events: the event log.
        last_id: Last-Event-ID of the client.
        kinds: kinds of events to send.
        on_close: called once when the stream has ended.
        feed: sends the status as well; None: events only.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        events: EventLog,
        last_id: str | None,
        kinds: frozenset[EventKind],
        on_close: Callable[[EventStream], object],
        feed: StatusFeed | None = None,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._events = events
        self._last_id = last_id
        self._kinds = kinds
        self._on_close = on_close
        self._feed = feed
        self._begun = False
        """Whether the head of the response was sent."""
        self._ended = asyncio.Event()

    def end(self) -> None:
        """End the stream at once; the client may reconnect."""
        self._ended.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects or reads too slowly, the stream is ended, or the process stops."""
        sending = asyncio.create_task(self._send_events(send), name="event stream")
        disconnected = asyncio.create_task(_wait_for_disconnect(receive), name="event stream disconnect")
        ended = asyncio.create_task(self._ended.wait(), name="event stream end")
        tasks: set[asyncio.Task[Any]] = {sending, disconnected, ended}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_close(self)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if ended.done() and not ended.cancelled() and self._begun:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        with suppress(TimeoutError, asyncio.CancelledError):
            sending.result()

    async def _send_events(self, send: Send) -> None:
        async def write(text: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send({"type": "http.response.body", "body": text, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._begun = True
        await write(b"retry: %d\n\n" % RECONNECT_MS)
        await self._events.wait_for(self._last_id, CATCH_UP_S)
        position, complete = self._events.after(self._last_id)
        if not complete:
            await write(b"event: missed\ndata: {}\n\n")
        feed, seen = self._feed, 0
        with nullcontext() if feed is None else feed.following():
            loop = asyncio.get_running_loop()
            end_at = loop.time() + (MAX_STREAM_S if feed is None else MAX_STATUS_S)
            while not self._events.closed and loop.time() < end_at:
                unsent = self._events.read(position)
                if unsent is None:
                    break
                position += len(unsent)
                text = b"".join(_frame(event) for event in unsent if event.kind in self._kinds)
                if feed is not None and _has_news(feed, seen):
                    text += b"event: status\ndata: %s\n\n" % feed.since(seen)
                    seen = feed.version
                if text:
                    await write(text)
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._events.wait(position, partial(_has_news, feed, seen))
                except TimeoutError:
                    await write(b":\n\n")
        await write(b"", more=False)


def _has_news(feed: StatusFeed | None, seen: int) -> bool:
    return feed is not None and feed.has_news(seen)


def _frame(event: FleetEvent) -> bytes:
    # JSON contains no line breaks, so one data line is enough.
    id_line = b"id: %s\n" % event.id.encode() if event.id else b""
    return b"%sevent: %s\ndata: %s\n\n" % (id_line, event.kind.encode(), msgspec.json.encode(event))


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
