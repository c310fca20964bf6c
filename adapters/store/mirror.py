"""A typed live copy of a part of the store, for reads without a call to the store."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, TypeVar

import msgspec
import structlog

from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore, KeyValue
from adapters.store.informer import BACKOFF_CAP_S, Informer, WatchLimits

STORE_LOST_AFTER_S = 3.0
"""Time (s) without a message after which the store counts as unavailable; a store sends progress every second."""

T = TypeVar("T", bound=msgspec.Struct)

_log = structlog.get_logger(__name__)


class Seen(msgspec.Struct, Generic[T], frozen=True):
    """A decoded value, and the revision at which its key was created."""

    value: T
    create_revision: int


class Mirror(Generic[T]):
    """Every value under a prefix, decoded; a value that cannot be decoded is logged and omitted.

    If a value is not authentic (empty, see `signed_store`), the last value of its key is kept.

    Args:
        store: the store to copy from.
        prefix: prefix of the keys.
        type_: type of the values.
        rng: source of the backoff's jitter.
        on_change: called after each change; must not block.
        backoff_cap_s: maximum time between two attempts to reach an unavailable store, in seconds.
    """

    def __init__(
        self,
        store: ConfigStore,
        prefix: str,
        type_: type[T],
        *,
        rng: Random,
        on_change: Callable[[], None] = lambda: None,
        backoff_cap_s: float = BACKOFF_CAP_S,
    ) -> None:
        self._prefix = prefix
        self._type = type_
        self._on_change = on_change
        self._values: dict[str, Seen[T]] = {}
        self.informer = Informer(store, prefix, self._changed, rng=rng, limits=WatchLimits(backoff_cap_s=backoff_cap_s))

    @property
    def values(self) -> dict[str, T]:
        """Values by the part of the key after the prefix, in key order."""
        return {key: self._values[key].value for key in sorted(self._values)}

    def seen(self, name: str) -> Seen[T] | None:
        """Return the value of a key, named by its part after the prefix; None if the key has no value."""
        return self._values.get(name)

    @property
    def has_key(self) -> bool:
        """Whether a key exists under the prefix, decodable or not."""
        return bool(self.informer.items)

    @property
    def store_is_up(self) -> bool:
        """Whether the last message of the store is less than STORE_LOST_AFTER_S old."""
        return self.informer.age_s < STORE_LOST_AFTER_S

    def _changed(self, change: Changed) -> None:
        name = change.key.removeprefix(self._prefix)
        if change.now is not None and not change.now.value and name in self._values:
            return
        value = self._decoded(change.now) if change.now is not None else None
        if value is None:
            self._values.pop(name, None)
        else:
            self._values[name] = value
        self._on_change()

    def _decoded(self, item: KeyValue) -> Seen[T] | None:
        try:
            return Seen(decode(item.value, self._type), item.create_revision)
        except CodecError as error:
            _log.warning("value left out", key=item.key, reason=str(error))
            return None
