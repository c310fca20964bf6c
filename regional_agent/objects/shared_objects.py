"""Shares the locations of objects with the other agents of the region through Redis.

Redis stores the digest of each identifier, and the authenticated location. One exchange runs at a time; it stores and
finds up to BATCH objects each. While Redis is unreachable, look-ups fail at once, and up to MAX_WAITING stores wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from random import Random
from typing import Annotated, Final

import msgspec
import structlog
from redis.exceptions import RedisError

from adapters.backoff import full_jitter_s
from penstock.routes.object_locations import MAX_OBJECT_ID_CHARS, OBJECT_LIFETIME_S, ObjectLocation
from penstock.wire.region_key import RegionKey
from penstock.wire.session import BadSignature
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.objects.object_script import MAX_ENTRY_BYTES, OBJECTS_SCRIPT, object_keys
from regional_agent.shared_load.redis_script import RedisScript, RegionRedis

PURPOSE: Final = "shared-objects"
"""Purpose for which the region's key authenticates the entries."""

MAX_TENANT_OBJECTS: Final = 20_000
"""Maximum number of objects of one tenant in Redis, about 400 bytes each. The least recently used are evicted first."""

MAX_WAITING: Final = 1024
"""Maximum number of waiting stores, and of waiting look-ups. The oldest store is dropped for a further one; a further
look-up fails."""

BATCH: Final = 64
"""Maximum number of stores, and of look-ups, in one exchange."""

TIMEOUT_S: Final = 0.25
"""Timeout (s) of connecting to Redis, and of one exchange."""

REPEAT_S: Final = 0.03
"""Time (s) after which a failed look-up is repeated once, since another agent may be storing the object."""

BACKOFF_BASE_S: Final = 0.1
BACKOFF_CAP_S: Final = 2.0

_FAILURES: Final = (RedisError, OSError, TimeoutError)
_Name = Annotated[str, msgspec.Meta(max_length=256)]

log = structlog.get_logger()


class _Entry(msgspec.Struct, frozen=True):
    """The location of one object, as stored."""

    field: _Name
    """The digest under which the entry is stored; the entry is rejected under any other digest."""
    model: _Name
    region: _Name
    endpoint: _Name


_decoder = msgspec.json.Decoder(_Entry)


class _Operation:
    """The store or the look-up of one object."""

    __slots__ = ("field", "found", "keys", "value")

    def __init__(self, keys: tuple[str, str], field: str, value: bytes) -> None:
        self.keys = keys
        self.field = field
        self.value = value
        """The sealed location to store; empty for a look-up."""
        self.found: asyncio.Future[ObjectLocation | None] | None = None


class SharedObjects:
    """The locations of objects in the Redis of one region."""

    def __init__(
        self,
        redis: RegionRedis,
        rng: Random,
        max_tenant_objects: int = MAX_TENANT_OBJECTS,
    ) -> None:
        """Create a connection that `start` opens.

        Args:
            redis: the Redis of the region.
            rng: jitter of reconnects.
            max_tenant_objects: maximum number of objects of one tenant in Redis.
        """
        self._max_tenant_objects = max_tenant_objects
        self._redis = RedisScript(redis.address, OBJECTS_SCRIPT, TIMEOUT_S)
        self._key = RegionKey(redis.keys, redis.region, PURPOSE)
        self._region = redis.region
        self._rng = rng
        self._stores: deque[_Operation] = deque(maxlen=MAX_WAITING)
        self._finds: deque[_Operation] = deque()
        self._wanted = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.up = True
        """Whether the last exchange succeeded."""
        self.rejected = 0
        """Number of rejected entries: malformed, or not stored by an agent of the region."""

    def start(self) -> None:
        """Start the exchange of locations."""
        self._tasks = [keep_running("shared objects", self._keep_exchanging)]

    async def stop(self) -> None:
        """Execute the waiting stores, if Redis is reachable, and disconnect."""
        await cancel(self._tasks)
        self._tasks = []
        with suppress(*_FAILURES):
            while self._stores:
                await self._exchange()
        self._give_up_finding()
        await self._redis.aclose()

    def publish(self, tenant: str, object_id: str, location: ObjectLocation) -> None:
        """Queue the location of an object to be stored. A full queue drops its oldest location."""
        if not 0 < len(object_id) <= MAX_OBJECT_ID_CHARS:
            return
        field = _digest(tenant, object_id)
        entry = _Entry(field, location.model, location.region, location.endpoint)
        sealed = self._key.seal(msgspec.json.encode(entry))
        self._stores.append(_Operation(object_keys(self._region, tenant), field, sealed))
        self._wanted.set()

    async def find(self, tenant: str, object_id: str) -> ObjectLocation | None:
        """The location of an object of a tenant; None if the object is unknown, or Redis is unreachable."""
        if not 0 < len(object_id) <= MAX_OBJECT_ID_CHARS:
            return None
        found = await self._find(tenant, object_id)
        if found is None and self.up:
            await asyncio.sleep(REPEAT_S)
            found = await self._find(tenant, object_id)
        return found

    def status(self) -> dict[str, object]:
        """The state for the status page."""
        return {"up": self.up, "rejected": self.rejected}

    async def _find(self, tenant: str, object_id: str) -> ObjectLocation | None:
        if not self.up or len(self._finds) >= MAX_WAITING:
            return None
        operation = _Operation(object_keys(self._region, tenant), _digest(tenant, object_id), b"")
        operation.found = asyncio.get_running_loop().create_future()
        self._finds.append(operation)
        self._wanted.set()
        return await operation.found

    async def _keep_exchanging(self) -> None:
        failures = 0
        while True:
            await self._wanted.wait()
            try:
                await self._exchange()
            except _FAILURES as error:
                self._set_down(error)
                self._give_up_finding()
                await asyncio.sleep(full_jitter_s(failures, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng))
                failures += 1
            else:
                failures = 0
                self._set_up()

    async def _exchange(self) -> None:
        """Execute up to BATCH waiting stores, and as many look-ups. If the exchange fails, its stores wait again."""
        self._wanted.clear()
        finds = [self._finds.popleft() for _ in range(min(BATCH, len(self._finds)))]
        stores = [self._stores.popleft() for _ in range(min(BATCH, len(self._stores)))]
        operations = finds + stores
        keys = tuple(key for operation in operations for key in operation.keys)
        words = [word for operation in operations for word in (operation.field, operation.value)]
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._redis.run(keys, (int(OBJECT_LIFETIME_S * 1000), self._max_tenant_objects, *words))
            if not isinstance(reply, list) or len(reply) != len(finds):
                raise RedisError("the reply is not that of the script")
        except BaseException:
            _resolve(finds, [None] * len(finds))
            excess = max(0, len(stores) + len(self._stores) - MAX_WAITING)
            self._stores.extendleft(reversed(stores[excess:]))
            self._wanted.set()
            raise
        _resolve(finds, [self._opened(operation, value) for operation, value in zip(finds, reply, strict=True)])
        if self._finds or self._stores:
            self._wanted.set()

    def _opened(self, operation: _Operation, sealed: object) -> ObjectLocation | None:
        """The location in a stored value; None if the value is empty, malformed or not authentic."""
        if not isinstance(sealed, bytes) or not sealed:
            return None
        try:
            return open_location(sealed, operation.field, self._key)
        except (BadSignature, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self.rejected += 1
            log.warning("entry in Redis rejected", field=operation.field, reason=str(error))
            return None

    def _give_up_finding(self) -> None:
        """End the waiting look-ups without a result."""
        waiting = [*self._finds]
        self._finds.clear()
        _resolve(waiting, [None] * len(waiting))

    def _set_down(self, error: Exception) -> None:
        if self.up:
            log.warning(
                "the objects of other agents are not found while Redis is unreachable",
                reason=str(error) or type(error).__name__,
            )
        self.up = False

    def _set_up(self) -> None:
        if not self.up:
            log.info("the objects of other agents are found again")
        self.up = True


def open_location(sealed: bytes, field: str, key: RegionKey) -> ObjectLocation:
    """Decode the location that an agent of the region stored under `field`.

    Raises:
        BadSignature: no agent of the region stored the location under `field`.
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the location is malformed.
    """
    entry = _decoder.decode(key.open(sealed))
    if entry.field != field:
        raise BadSignature("the entry is stored under another name than its own")
    return ObjectLocation(entry.model, entry.region, entry.endpoint)


def _resolve(operations: Sequence[_Operation], locations: Sequence[ObjectLocation | None]) -> None:
    for operation, location in zip(operations, locations, strict=True):
        # The future is already cancelled if the client has disconnected.
        if operation.found is not None and not operation.found.done():
            operation.found.set_result(location)


def _digest(tenant: str, object_id: str) -> str:
    """The digest under which an object is stored. Redis does not receive the identifier itself, because engines accept
    an identifier as the only reference to a stored object."""
    return blake2b(f"{len(tenant)}:{tenant}{object_id}".encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


assert MAX_ENTRY_BYTES > 4 * 256 * 2
