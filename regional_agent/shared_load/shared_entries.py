"""Stores and finds authenticated entries in the Redis of one region, for the agents of the region.

One exchange runs at a time; it finds and stores up to a batch each. While Redis is unreachable, waiting look-ups find
nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from typing import Final, Generic, NamedTuple, TypeVar

import structlog
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import RegionKey
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.shared_load.redis_script import RedisScript, RegionRedis
from regional_agent.shared_load.shared_load_exchange import BACKOFF_BASE_S, BACKOFF_CAP_S, FAILURES

TIMEOUT_S: Final = 0.25
"""Timeout (s) of connecting to Redis, and of one exchange."""

MAX_WAITING: Final = 1024
"""Maximum number of waiting stores, of which the oldest is dropped for a further one, and of waiting look-ups."""

T = TypeVar("T")

log = structlog.get_logger()


class EntryKind(NamedTuple, Generic[T]):
    """What the entries of one kind are, and how they are stored."""

    purpose: str
    """Purpose for which the region's key authenticates the entries."""
    subject: str
    """Name of the entries in logs."""
    script: str
    """Lua source. KEYS and ARGV have those of each look-up, then those of each store; it returns the stored values of
    the look-ups in their order, an empty string for one that is not found."""
    open: Callable[[bytes, str | bytes, RegionKey], T]
    """Reads the value that is stored under a name; raises BadSignature if no agent of the region stored it there."""
    batch: int
    """Maximum number of stores, and of look-ups, in one exchange."""
    repeats_stores: bool
    """Whether the stores of a failed exchange wait again, and are executed at the stop of the agent."""
    head: tuple[int, ...] = ()
    """First words of ARGV."""


class Operation(Generic[T]):
    """The store or the look-up of one entry."""

    __slots__ = ("found", "keys", "name", "value", "words")

    def __init__(self, keys: tuple[str, str], name: str | bytes, value: bytes = b"", words: tuple[int, ...] = ()):
        self.keys = keys
        self.name = name
        """Name of the entry; an entry is rejected under any other name than that which it states."""
        self.value = value
        """The sealed entry to store; empty for a look-up."""
        self.words = words
        """Further words of the operation in ARGV."""
        self.found: asyncio.Future[T | None] | None = None


class SharedEntries(Generic[T]):
    """The entries of one kind in the Redis of one region."""

    def __init__(self, redis: RegionRedis, kind: EntryKind[T], rng: Random, on_failure: Callable[[], None]) -> None:
        """Create a connection that `start` opens.

        Args:
            redis: the Redis of the region.
            kind: what the entries are.
            rng: jitter of reconnects.
            on_failure: called for each failed exchange.
        """
        self._redis = RedisScript(redis.address, kind.script, TIMEOUT_S)
        self._kind = kind
        self._rng = rng
        self._on_failure = on_failure
        self.key = RegionKey(redis.keys, redis.region, kind.purpose)
        """Authenticates the entries."""
        self.stores: deque[Operation[T]] = deque(maxlen=MAX_WAITING)
        """Waiting stores, the oldest first."""
        self._finds: deque[Operation[T]] = deque()
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.up = True
        """Whether the last exchange succeeded."""
        self.rejected = 0
        """Number of rejected entries: malformed, or not stored by an agent of the region."""

    @property
    def is_asked(self) -> bool:
        """Whether look-ups are sent to Redis: it is reachable, and not too many wait."""
        return self.up and len(self._finds) < MAX_WAITING

    def start(self) -> None:
        """Start the exchanges."""
        self._tasks = [keep_running(self._kind.subject, self._keep_exchanging)]

    async def stop(self) -> None:
        """Stop, and disconnect."""
        await cancel(self._tasks)
        self._tasks = []
        with suppress(*FAILURES):
            while self.stores and self._kind.repeats_stores:
                await self.exchange()
        self._give_up_finding()
        await self._redis.aclose()

    def store(self, operation: Operation[T]) -> None:
        """Queue an entry to be stored. A full queue drops its oldest entry."""
        self.stores.append(operation)
        self._wanted.set()

    async def find(self, operation: Operation[T]) -> T | None:
        """Return a stored entry; None if there is none, or Redis is unreachable. Only while `is_asked`."""
        operation.found = asyncio.get_running_loop().create_future()
        self._finds.append(operation)
        self._wanted.set()
        return await operation.found

    def status(self) -> dict[str, object]:
        """The state for the status page."""
        return {"up": self.up, "rejected": self.rejected}

    async def exchange(self) -> None:
        """Execute up to a batch of waiting look-ups, and as many stores.

        Raises:
            RedisError, OSError, TimeoutError: Redis is unreachable, or did not answer.
        """
        self._wanted.clear()
        finds, stores = (
            [queue.popleft() for _ in range(min(self._kind.batch, len(queue)))] for queue in (self._finds, self.stores)
        )
        operations = finds + stores
        keys = tuple(key for operation in operations for key in operation.keys)
        words = tuple(word for each in operations for word in (each.name, each.value, *each.words))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._redis.run(keys, (*self._kind.head, *words))
            if not isinstance(reply, list) or len(reply) != len(finds):
                raise RedisError("the reply is not that of the script")
        except BaseException:
            _resolve(finds, [None] * len(finds))
            if self._kind.repeats_stores:
                excess = max(0, len(stores) + len(self.stores) - MAX_WAITING)
                self.stores.extendleft(reversed(stores[excess:]))
            self._wanted.set()
            raise
        _resolve(finds, map(self._opened, finds, reply))
        if self._finds or self.stores:
            self._wanted.set()

    async def _keep_exchanging(self) -> None:
        failures = 0
        while True:
            await self._wanted.wait()
            try:
                await self.exchange()
            except FAILURES as error:
                self._on_failure()
                if self.up:
                    reason = str(error) or type(error).__name__
                    log.warning(f"{self._kind.subject} are not found while Redis is unreachable", reason=reason)
                self.up = False
                self._give_up_finding()
                await asyncio.sleep(full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng))
                failures += 1
            else:
                if not self.up:
                    log.info(f"{self._kind.subject} are found again")
                failures, self.up = 0, True

    def _opened(self, operation: Operation[T], sealed: object) -> T | None:
        """Return the entry in a stored value; None if the value is empty, malformed or not authentic."""
        if not isinstance(sealed, bytes) or not sealed:
            return None
        try:
            return self._kind.open(sealed, operation.name, self.key)
        except BadSignature as error:
            self.rejected += 1
            log.warning("entry in Redis rejected", key=operation.keys[0], reason=str(error))
            return None

    def _give_up_finding(self) -> None:
        """End the waiting look-ups without a result."""
        waiting = [*self._finds]
        self._finds.clear()
        _resolve(waiting, [None] * len(waiting))


def _resolve(operations: Iterable[Operation[T]], entries: Iterable[T | None]) -> None:
    for operation, entry in zip(operations, entries, strict=True):
        # The future is already cancelled if the look-up took too long, or the client has disconnected.
        if operation.found is not None and not operation.found.done():
            operation.found.set_result(entry)
