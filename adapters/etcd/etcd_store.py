"""The store in etcd: keys, transactions and leases through etcd3's client, watches on the Watch RPC.

The calls of etcd3 block, so they run in CALL_THREADS separate threads and do not block the event loop. `renew_lease`
runs in the thread of its caller, with a connection of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeVar

import grpc

from adapters.etcd import etcd_messages
from adapters.etcd.etcd_connection import Connections, Endpoint, Tls
from adapters.etcd.etcd_errors import translate
from adapters.etcd.etcd_stubs import Etcd3Client, etcdrpc
from adapters.etcd.etcd_watch import watch_prefix
from adapters.store.config_store import (
    Changed,
    Committed,
    Compacted,
    Delete,
    KeyValue,
    LeaseLost,
    Listing,
    Put,
    SameKey,
    StoreUnavailable,
    Unchanged,
)

CALL_THREADS = 4

LIST_PAGE_KEYS = 50
"""Keys in one response to a list. Values have at most 1 MiB (`codec.MAX_VALUE_BYTES`), and a response 64 MiB
(`etcd_connection.MAX_RESPONSE_BYTES`); each page has the whole time limit of a call."""

KEEP_ALIVE = "keep a lease alive"
"""Name of the call in errors."""

T = TypeVar("T")


class EtcdStore:
    """A ConfigStore in etcd (3.4 or newer).

    Reads, and grants, keep-alives and revocations of leases, are tried once more on the next endpoint if etcd is
    unavailable and there are several endpoints. A commit is not, since the first attempt may have been applied: after
    StoreUnavailable, callers must read the keys to determine the result.

    Args:
        endpoints: `host:port` of the members, tried in turn.
        tls: TLS files; None connects without TLS.
        call_timeout_s: maximum duration of every call except watches, in seconds.

    Raises:
        ValueError: an endpoint is not of that form, or `tls` has only one of certificate and key.
    """

    def __init__(self, endpoints: Sequence[str], *, tls: Tls | None = None, call_timeout_s: float = 2.0) -> None:
        parsed = [Endpoint.parse(endpoint) for endpoint in endpoints]
        self.files = tls.watched() if tls is not None else None
        """The TLS files, which the caller checks for changes; None without TLS."""
        self._calls = Connections(parsed, self.files)
        self._watches = Connections(parsed, self.files)
        self._renewals = Connections(parsed, self.files)
        self._call_timeout_s = call_timeout_s
        self._tries = min(2, len(parsed))
        self._threads = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="etcd-call")

    async def get(self, key: str) -> KeyValue | None:
        """Return the current state of a key, or None if it does not exist (a linearizable read)."""
        response = await self._range(key)
        return etcd_messages.to_key_value(response.kvs[0]) if response.kvs else None

    async def list(self, prefix: str, *, values: bool = True) -> Listing:
        """Return every key under `prefix` at one revision; without `values`, each value is empty.

        The keys are read page by page. If the history of the first page's revision is compacted meanwhile, the list is
        read again, once.

        Raises:
            Compacted: the history was compacted again.
            StoreUnavailable: etcd is unavailable.
        """
        try:
            return await self._list(prefix, values)
        except Compacted:
            return await self._list(prefix, values)

    async def _list(self, prefix: str, values: bool) -> Listing:
        limit = LIST_PAGE_KEYS if values else 0
        request = etcd_messages.range_request(prefix, prefix=True, values=values, limit=limit)
        page = await self._read(request)
        revision: int = page.header.revision
        items = list(map(etcd_messages.to_key_value, page.kvs))
        while page.more:
            request = etcd_messages.following_page(request, page, revision)
            page = await self._read(request)
            items += map(etcd_messages.to_key_value, page.kvs)
        return Listing(tuple(items), revision)

    async def commit(self, expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]) -> Committed:
        """Apply all of `do` atomically if all of `expect` holds; otherwise change nothing.

        Raises:
            LeaseLost: a Put names a lease that has expired or was revoked.
            StoreUnavailable: etcd is unavailable; whether the transaction was applied is unknown.
            StoreError: etcd rejects the transaction, for example for its size.
        """
        request = etcd_messages.transaction_request(expect, do)
        response = await self._call("commit", lambda client, timeout_s: client.kvstub.Txn(request, timeout_s), tries=1)
        return Committed(succeeded=response.succeeded, revision=response.header.revision)

    async def grant_lease(self, ttl_s: int) -> int:
        """Create a lease that expires `ttl_s` (s) after its last keep-alive; returns its ID."""
        request = etcdrpc.LeaseGrantRequest(TTL=ttl_s)
        response = await self._call(
            "grant a lease", lambda client, timeout_s: client.leasestub.LeaseGrant(request, timeout_s)
        )
        lease_id: int = response.ID
        return lease_id

    async def keep_alive(self, lease_id: int) -> None:
        """Renew a lease once; raises LeaseLost if the lease has expired or was revoked."""
        await self._call(KEEP_ALIVE, partial(_keep_alive, lease_id))

    def renew_lease(self, lease_id: int, timeout_s: float) -> None:
        """Renew a lease once in the calling thread; raises LeaseLost if the lease has expired or was revoked."""
        timeout_s = min(timeout_s, self._call_timeout_s)
        self._attempts(self._renewals, KEEP_ALIVE, partial(_keep_alive, lease_id), self._tries, timeout_s)

    async def revoke_lease(self, lease_id: int) -> None:
        """Revoke a lease and delete its keys; does nothing if the lease has expired or was revoked before."""
        request = etcdrpc.LeaseRevokeRequest(ID=lease_id)
        with suppress(LeaseLost):
            await self._call(
                "revoke a lease", lambda client, timeout_s: client.leasestub.LeaseRevoke(request, timeout_s)
            )

    async def watch(self, prefix: str, after_revision: int) -> AsyncGenerator[tuple[Changed, ...], None]:
        """Yield batches of all changes under `prefix` with a revision above `after_revision`, in order.

        Watches share one connection; after a watch fails, new watches use a connection to the next endpoint.
        """
        with self._watches.use() as connection:
            try:
                batches = watch_prefix(connection.client, prefix, after_revision, self._current_revision)
                async with aclosing(batches):
                    async for batch in batches:
                        yield batch
            except StoreUnavailable as error:
                self._watches.retire(connection)
                raise StoreUnavailable(f"etcd {connection.endpoint}: {error}") from error

    async def close(self) -> None:
        """Close connections and threads; calls in progress fail immediately, and watches end."""
        self._watches.close()
        self._calls.close()
        self._renewals.close()
        # Calls that wait for a thread still run, and fail because the connections are closed. The thread pool does not
        # cancel them, because the cancellation would propagate to their callers.
        await asyncio.to_thread(self._threads.shutdown)

    async def _range(self, key: str) -> Any:
        return await self._read(etcd_messages.range_request(key, prefix=False))

    async def _read(self, request: Any) -> Any:
        return await self._call("read", lambda client, timeout_s: client.kvstub.Range(request, timeout_s))

    async def _current_revision(self) -> int:
        response = await self._range("\0")
        revision: int = response.header.revision
        return revision

    async def _call(self, what: str, work: Callable[[Etcd3Client, float], T], *, tries: int | None = None) -> T:
        """Run a blocking call of etcd3 in a thread; the time limit includes the wait for a thread."""
        loop = asyncio.get_running_loop()
        try:
            attempts = partial(self._attempts, self._calls, what, work, tries or self._tries, self._call_timeout_s)
            call = loop.run_in_executor(self._threads, attempts)
        except RuntimeError as error:
            # The thread pool is shut down.
            raise StoreUnavailable("the store is closed") from error
        try:
            # This timeout exceeds gRPC's deadline, so that it only ends calls that wait for a thread. wait_for is not
            # used: before Python 3.12, wait_for loses a cancellation that arrives as the call completes
            # (python/cpython#86296).
            async with asyncio.timeout(self._call_timeout_s + 0.5):
                return await call
        except TimeoutError as error:
            raise StoreUnavailable(f"etcd: {what}: every thread is waiting for an answer") from error

    def _attempts(
        self,
        connections: Connections,
        what: str,
        work: Callable[[Etcd3Client, float], T],
        tries: int,
        timeout_s: float,
    ) -> T:
        for attempt in range(1, tries + 1):
            with connections.use() as connection:
                try:
                    return work(connection.client, timeout_s / tries)
                except (grpc.RpcError, ValueError) as error:
                    failure = translate(error, f"etcd {connection.endpoint}: {what}")
                    if isinstance(failure, StoreUnavailable):
                        connections.retire(connection)
                    if attempt == tries or not isinstance(failure, StoreUnavailable):
                        raise failure from error
        raise AssertionError("unreachable")


def _keep_alive(lease_id: int, client: Etcd3Client, timeout_s: float) -> None:
    request = etcdrpc.LeaseKeepAliveRequest(ID=lease_id)
    response = next(client.leasestub.LeaseKeepAlive(iter([request]), timeout_s), None)
    if response is None or response.TTL <= 0:
        raise LeaseLost(f"lease {lease_id} is gone")
