"""A watch on etcd's Watch RPC that delivers every change or ends with an error; a hung etcd is detected.

The watcher of etcd3 spins when etcd stops and does not recover, so only the messages and the stub of etcd3 are used.
One thread reads gRPC's blocking call, and ends with the call.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from queue import SimpleQueue
from typing import Any

import grpc

from adapters.etcd.etcd_errors import translate
from adapters.etcd.etcd_messages import PROGRESS_REQUEST, to_changed, watch_request
from adapters.etcd.etcd_stubs import Etcd3Client, etcdrpc
from adapters.store.config_store import Changed, Compacted, StoreUnavailable

ASK_PROGRESS_AFTER_S = 1.0
"""Idle time (s) after which a watch requests progress from etcd (requires etcd >= 3.4)."""
HUNG_AFTER_S = 3.0
"""Time (s) without a response to a watch or progress request after which etcd counts as hung."""
MAX_UNREAD_RESPONSES = 16
"""Maximum number of responses that the thread reads ahead of the consumer; beyond that, flow control limits etcd."""

REQUIRE_LEADER = (("hasleader", "true"),)
"""gRPC metadata: a member that has lost its cluster's leader ends the watch (WithRequireLeader in etcd's clientv3)."""


async def watch_prefix(
    client: Etcd3Client,
    prefix: str,
    after_revision: int,
    current_revision: Callable[[], Awaitable[int]],
) -> AsyncGenerator[tuple[Changed, ...], None]:
    """Yield the batches of ConfigStore.watch.

    Args:
        client: provides the gRPC channel.
        prefix: prefix of the keys to watch.
        after_revision: changes with a larger revision are delivered.
        current_revision: reads the cluster's revision, in case the watched member lags behind.

    Raises:
        Compacted: the history after `after_revision` is compacted, or the store was wiped or restored.
        StoreUnavailable: etcd ended the watch, or is hung.
    """
    # The watch starts at `after_revision`, not at the revision after it: if the history was compacted at a deletion,
    # etcd before 3.5.16 silently omits that deletion from a watch that starts at its revision
    # (https://github.com/etcd-io/etcd/issues/18089); a watch that starts earlier receives the compaction error.
    create = watch_request(prefix, max(after_revision, 1))
    pending: list[Changed] = []
    async with aclosing(responses(client, create)) as stream:
        async for response in stream:
            if response.canceled:
                raise why_cancelled(response)
            behind = response.created and response.header.revision < after_revision
            # A member that lags behind receives the missing revisions later. A store that was wiped or restored would
            # send no changes until its revision exceeds `after_revision`.
            if behind and await current_revision() < after_revision:
                raise Compacted(f"the store is at {response.header.revision}, before {after_revision}")
            # The revision of a progress response is not used to resume a watch, because the revision may be ahead of
            # events before etcd 3.5.8 (https://github.com/etcd-io/etcd/issues/15220). The response only shows that the
            # watch is active.
            pending.extend(to_changed(event) for event in response.events if event.kv.mod_revision > after_revision)
            if not response.fragment:
                batch, pending = tuple(pending), []
                yield batch


def why_cancelled(response: Any) -> Compacted | StoreUnavailable:
    """Return the error for a watch that etcd cancelled."""
    if response.compact_revision:
        return Compacted(f"etcd's history begins at revision {response.compact_revision}")
    return StoreUnavailable(f"etcd ended the watch: {response.cancel_reason}")


async def responses(client: Etcd3Client, create: Any) -> AsyncGenerator[Any, None]:
    """Yield etcd's responses on one watch stream; requests progress while the stream is idle.

    Raises:
        StoreUnavailable: the call ended, or etcd is hung.
    """
    loop = asyncio.get_running_loop()
    requests: SimpleQueue[Any] = SimpleQueue()
    requests.put(create)
    try:
        call = etcdrpc.WatchStub(client.channel).Watch(iter(requests.get, None), metadata=REQUIRE_LEADER)
    except ValueError as error:
        raise translate(error, "watch") from error
    reader = Reader(call, loop)
    owed_since: float | None = loop.time()
    try:
        while True:
            response = await reader.next(ASK_PROGRESS_AFTER_S)
            if response is not None:
                owed_since = None
                yield response
            elif owed_since is None:
                owed_since = loop.time()
                requests.put(PROGRESS_REQUEST)
            elif loop.time() - owed_since > HUNG_AFTER_S:
                raise StoreUnavailable(f"etcd has not answered for {loop.time() - owed_since:.1f} s")
    finally:
        reader.stop()
        requests.put(None)


class Reader:
    """Reads the responses of a blocking gRPC call in a thread, and passes them to the event loop.

    Args:
        call: the streaming call.
        loop: the event loop in which `next` is awaited.
    """

    def __init__(self, call: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._room = threading.Semaphore(MAX_UNREAD_RESPONSES)
        self._stopped = False
        # A daemon thread does not prevent the interpreter from exiting if the store was not closed.
        threading.Thread(target=self._read, name="etcd-watch", daemon=True).start()

    async def next(self, timeout_s: float) -> Any:
        """Return the next response, or None after `timeout_s` (s).

        Raises:
            StoreUnavailable: the call ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                arrived = await self._arrived.get()
        except TimeoutError:
            return None
        self._room.release()
        if isinstance(arrived, Exception):
            raise translate(arrived, "watch")
        return arrived

    def stop(self) -> None:
        """Cancel the call, which ends the thread."""
        self._stopped = True
        self._call.cancel()
        self._room.release()

    def _read(self) -> None:
        end: Exception = StoreUnavailable("etcd ended the watch")
        try:
            for response in self._call:
                self._room.acquire()
                if self._stopped:
                    return
                self._hand_over(response)
        except grpc.RpcError as error:
            end = error
        self._hand_over(end)

    def _hand_over(self, arrived: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, arrived)
        except RuntimeError:
            # The event loop is closed, so no consumer is left.
            self._call.cancel()
