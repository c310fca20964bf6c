"""The states of a job as server-sent events, for a client that waits."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec

from adapters.object_store.object_store import StoreUnavailable
from penstock.routing.reasons import Reason, Refusal
from regional_agent.jobs.api.api_responses import BadInput, WaitingResponse

MAX_STREAM_S: Final = 600.0
"""Time (s) after which a stream ends; clients of server-sent events connect again."""

MIN_POLL_S: Final = 0.5
MAX_POLL_S: Final = 5.0
"""Bounds (s) of the interval in which the store is read; it doubles while nothing changes."""

MAX_STREAMS: Final = 512
"""Streams of one agent at a time."""

MAX_STREAMS_OF_TENANT: Final = 32
"""Streams of one tenant at an agent at a time."""

_KEEP_ALIVE: Final = b": keep-alive\n\n"

View = Callable[[], Awaitable[dict[str, Any]]]
"""Returns the job as an object. Raises BadInput if it does not exist, and StoreUnavailable."""

Wait = Callable[[float], Awaitable[None]]
"""Returns after a time (s), or earlier when the job may have ended."""


class OpenStreams:
    """The streams of an agent."""

    def __init__(self) -> None:
        """Start without streams."""
        self._tenants: dict[WaitingResponse, str] = {}

    def refuse(self, tenant: str) -> Refusal | None:
        """Return the refusal of a further stream of a tenant; None if there is room."""
        self._tenants = {stream: owner for stream, owner in self._tenants.items() if stream.is_active}
        of_tenant = sum(owner == tenant for owner in self._tenants.values())
        if len(self._tenants) < MAX_STREAMS and of_tenant < MAX_STREAMS_OF_TENANT:
            return None
        return Refusal(Reason.SATURATED, "too many streams of events; poll the job instead", retry_after_s=5.0)

    def add(self, tenant: str, stream: WaitingResponse) -> None:
        """Count a stream until it ends."""
        self._tenants[stream] = tenant


def is_ended(job: dict[str, Any]) -> bool:
    """Whether a job as an object has ended."""
    ended = ("completed", "failed", "cancelled", "expired")
    return job.get("status") in ended or job.get("processing_status") == "ended"


async def job_events(
    first: dict[str, Any], view: View, wait: Wait, is_permitted: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Yield an event for each change of a job, `first` at once, until it has ended.

    A forecast changes all the time and is no change.

    Args:
        is_permitted: whether the policy in force still permits the stream.
    """
    until, poll_s, shown, job = time.monotonic() + MAX_STREAM_S, MIN_POLL_S, None, first
    while True:
        compared = {key: value for key, value in job.items() if not key.startswith("expected_")}
        if compared != shown:
            poll_s, shown = MIN_POLL_S, compared
            yield b"event: status\ndata: %b\n\n" % msgspec.json.encode(job)
        else:
            poll_s = min(MAX_POLL_S, 2 * poll_s)
            yield _KEEP_ALIVE
        if is_ended(job) or time.monotonic() > until:
            return
        await wait(poll_s)
        if not is_permitted():
            return
        try:
            job = await view()
        except StoreUnavailable:
            continue
        except BadInput:
            # Deleted meanwhile.
            return
