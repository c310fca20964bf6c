"""GET /v1/events: what happens, as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html).

A reader that is cut off says with Last-Event-ID where it was, here or at another control plane, and misses nothing that
is still kept. One that does not keep up is cut off, so that nothing is kept for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query, Response
from starlette.types import Receive, Scope, Send

from control_plane.api.openapi import gives
from control_plane.api.problems import Problem
from control_plane.auth.required_roles import Viewer
from control_plane.events.event_log import Event, EventLog, Kind

MAX_READERS = 100
"""At a time; each holds a connection."""

MAX_OF_ONE_CALLER = 50
"""Of these, so that nobody keeps all others out."""

BEAT_S = 10.0
"""A stream that has nothing to tell shows this often (s) that it lives."""

SLOW_S = 10.0
"""A reader that takes nothing for this long (s) is cut off."""

CATCH_UP_S = 2.0
"""How long (s) the event that a reader saw elsewhere may take to arrive here."""

RECONNECT_MS = 1_000

EVENT_STREAM = "text/event-stream"

LastEventId = Annotated[
    str | None, Header(max_length=64, description="`id` of the last event seen: resume after it. Without: from now on.")
]
Kinds = Annotated[list[Kind] | None, Query(max_length=len(Kind), description="Only events of these kinds.")]


def routes(events: EventLog) -> APIRouter:
    """Streams events."""
    router = APIRouter(prefix="/v1/events", tags=["events"])
    readers: dict[EventStream, str] = {}
    """And who each is."""

    @router.get(
        "", responses=gives(str, "A stream of events, each with an Event as its data.", media_type=EVENT_STREAM)
    )
    async def stream(caller: Viewer, last_event_id: LastEventId = None, kind: Kinds = None) -> Response:
        """What happens, as it happens.

        `event` is the kind: leadership, region, plan, policy, rollout or audit. If not all events after Last-Event-ID
        are kept, an event `missed` comes first and then those that are: look at the state anew. An event without an id
        is told by this control plane alone, of itself: nothing resumes after it.
        """
        if len(readers) >= MAX_READERS:
            raise Problem(503, f"{MAX_READERS} read events already; try again later", {"retry-after": "5"})
        if list(readers.values()).count(caller.name) >= MAX_OF_ONE_CALLER:
            raise Problem(429, f"{caller.name} reads events {MAX_OF_ONE_CALLER} times already", {"retry-after": "5"})
        reader = EventStream(events, last_event_id, frozenset(kind or Kind), lambda one: readers.pop(one, None))
        readers[reader] = caller.name
        return reader

    return router


class EventStream(Response):
    """One reader's stream.

    Args:
        events: what to read.
        last_id: where the reader was.
        kinds: which events it wants.
        on_end: called once, when the stream has ended.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        events: EventLog,
        last_id: str | None,
        kinds: frozenset[Kind],
        on_end: Callable[[EventStream], object],
    ) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._events = events
        self._last_id = last_id
        self._kinds = kinds
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the reader leaves, is too slow, or the process stops."""
        telling = asyncio.create_task(self._tell(send), name="events")
        leaving = asyncio.create_task(_left(receive), name="events reader")
        try:
            await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_end(self)
            for task in (telling, leaving):
                task.cancel()
            await asyncio.wait({telling, leaving})
        with suppress(TimeoutError, asyncio.CancelledError):
            telling.result()

    async def _tell(self, send: Send) -> None:
        async def give(text: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(SLOW_S):
                await send({"type": "http.response.body", "body": text, "more_body": more})

        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await give(b"retry: %d\n\n" % RECONNECT_MS)
        await self._events.wait_for(self._last_id, CATCH_UP_S)
        position, whole = self._events.after(self._last_id)
        if not whole:
            await give(b"event: missed\ndata: {}\n\n")
        while not self._events.closed:
            happened = self._events.read(position)
            if happened is None:
                break
            position += len(happened)
            text = b"".join(_framed(event) for event in happened if event.kind in self._kinds)
            if text:
                await give(text)
            try:
                async with asyncio.timeout(BEAT_S):
                    await self._events.wait(position)
            except TimeoutError:
                await give(b":\n\n")
        await give(b"", more=False)


def _framed(event: Event) -> bytes:
    # JSON has no line breaks of its own, so one data line is enough.
    named = b"id: %s\n" % event.id.encode() if event.id else b""
    return b"%sevent: %s\ndata: %s\n\n" % (named, event.kind.encode(), msgspec.json.encode(event))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
