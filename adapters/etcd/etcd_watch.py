"""One watch on etcd's Watch RPC: it delivers every change, or ends with an error; it never stalls silently.

etcd3's own watcher spins when etcd stops and is dead afterwards, so only its messages and stub are used.
gRPC's blocking call is read by one thread, which ends when the call does.
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
"""Idle time in seconds after which a watch requests progress from etcd (needs etcd >= 3.4)."""
HUNG_AFTER_S = 3.0
"""Time in seconds without a response after which etcd counts as hung."""
MAX_UNREAD_RESPONSES = 16
"""Responses that the reading thread may be ahead of the consumer; then gRPC's flow control holds etcd back."""

REQUIRE_LEADER = (("hasleader", "true"),)
"""A member that is cut off from its cluster ends the watch (what etcd's clientv3 calls WithRequireLeader)."""


async def watch_prefix(
    client: Etcd3Client,
    prefix: str,
    after_revision: int,
    current_revision: Callable[[], Awaitable[int]],
) -> AsyncGenerator[tuple[Changed, ...], None]:
    """The batches of ConfigStore.watch.

    Args:
        client: provides the gRPC channel.
        prefix: keys to watch.
        after_revision: changes above this one are delivered.
        current_revision: reads the cluster's revision, in case the watched member lags behind.

    Raises:
        Compacted: the history after `after_revision` is gone, or the store's history is another one.
        StoreUnavailable: etcd ended the watch, or is hung.
    """
    # From the revision that was seen, not the one after it: where the history was compacted at a deletion, etcd
    # before 3.5.16 silently omits that deletion from a watch that starts there
    # (https://github.com/etcd-io/etcd/issues/18089); a watch that starts before receives the compaction error.
    create = watch_request(prefix, max(after_revision, 1))
    pending: list[Changed] = []
    async with aclosing(responses(client, create)) as stream:
        async for response in stream:
            if response.canceled:
                raise why_cancelled(response)
            behind = response.created and response.header.revision < after_revision
            # A member that lags catches up; a store that was wiped or restored would not send new keys.
            if behind and await current_revision() < after_revision:
                raise Compacted(f"the store is at {response.header.revision}, before {after_revision}")
            # The revision of a progress answer is no point to resume from: before 3.5.8 it may be ahead of
            # events (https://github.com/etcd-io/etcd/issues/15220). It only shows life.
            pending.extend(to_changed(event) for event in response.events if event.kv.mod_revision > after_revision)
            if not response.fragment:
                batch, pending = tuple(pending), []
                yield batch


def why_cancelled(response: Any) -> Compacted | StoreUnavailable:
    """The error for a watch that etcd cancelled."""
    if response.compact_revision:
        return Compacted(f"etcd's history begins at revision {response.compact_revision}")
    return StoreUnavailable(f"etcd ended the watch: {response.cancel_reason}")


async def responses(client: Etcd3Client, create: Any) -> AsyncGenerator[Any, None]:
    """etcd's answers on one watch stream, requesting progress when there are none."""
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
    """Takes responses off a blocking gRPC call in a thread, and hands them to the event loop.

    Args:
        call: the streaming call.
        loop: where `next` is awaited.
    """

    def __init__(self, call: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._room = threading.Semaphore(MAX_UNREAD_RESPONSES)
        self._stopped = False
        # A daemon, so that a store that was never closed cannot keep the interpreter from ending.
        threading.Thread(target=self._read, name="etcd-watch", daemon=True).start()

    async def next(self, timeout_s: float) -> Any:
        """The next response, or None after `timeout_s`.

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
        """End the call and with it the thread."""
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
