"""Follows values of one type in the store. What was read stays in force: a value that was removed, cannot be decoded or
is not authentic changes nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore
from adapters.store.informer import Informer
from regional_agent.background_tasks import cancel

T = TypeVar("T", bound=msgspec.Struct)

log = structlog.get_logger()


class FollowedValues(Generic[T]):
    """The values under a prefix.

    Args:
        store: the fleet's configuration store.
        prefix: prefix of the keys.
        type_: type of the values.
        on_value: called with each value: the end of its key after the prefix, the value, and its stored form.
        rng: adds jitter to reconnects.
    """

    def __init__(
        self, store: ConfigStore, prefix: str, type_: type[T], on_value: Callable[[str, T, bytes], None], rng: Random
    ) -> None:
        self._prefix = prefix
        self._type = type_
        self._on_value = on_value
        self._informer = Informer(store, prefix, self._on_change, rng=rng)
        self._saving: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float | None:
        """Time (s) since the store or its watch sent something; None before the first listing."""
        return round(self._informer.age_s, 3) if self._informer.age_s < math.inf else None

    def start(self) -> None:
        """Start to follow the store."""
        self._informer.start()

    async def wait_read(self) -> None:
        """Return once the store was read; the values in the store apply from then on."""
        await self._informer.wait_synced()

    async def stop(self) -> None:
        """Stop following the store; the values stay in force."""
        await self._informer.stop()
        await cancel([self._saving] if self._saving is not None else [])
        self._saving = None

    def save(self, saving: Coroutine[Any, Any, None]) -> None:
        """Run a write to disk in a task, since a disk that stalls must not delay later changes."""
        self._saving = asyncio.create_task(saving)

    def _on_change(self, change: Changed) -> None:
        if change.now is None:
            log.warning("a value was removed from the store; what was read stays in force", key=change.key)
            return
        try:
            value = decode(change.now.value, self._type)
        except CodecError as error:
            log.error("a value was not read; what was read before stays in force", key=change.key, reason=str(error))
            return
        self._on_value(change.key.removeprefix(self._prefix), value, change.now.value)
