"""A live copy of a collection of Kubernetes objects: list, then watch, and list again if the version has expired.

Modelled on client-go's reflector (https://github.com/kubernetes/client-go/blob/master/tools/cache/reflector.go). If a
request fails, the last objects are kept. Deletions that a watch reports are applied at once. If the previous list had
objects, an empty list is applied only if a second list, CONFIRM_EMPTY_S or more later, is empty as well, because an API
server that starts, or was restored from the wrong backup, may return empty lists. If an object is invalid, its last
valid version is kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from random import Random
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from adapters.backoff import full_jitter_s
from regional_agent.endpoints.discovery.kubernetes_api import (
    OPENED,
    Event,
    Expired,
    KubernetesApi,
    KubernetesError,
    decoded,
)
from regional_agent.endpoints.discovery.kubernetes_objects import KubernetesObject

MAX_OBJECTS: Final = 2048
"""Maximum number of objects of one collection."""
CONFIRM_EMPTY_S: Final = 15.0
"""Minimum time (s) between two empty lists after which the second list is applied."""
BACKOFF_BASE_S: Final = 0.5
BACKOFF_CAP_S: Final = 15.0
"""Bound (s) of the wait between two failed requests."""
STEADY_S: Final = 10.0
"""A watch that lasted this long (s) resets the wait after failures."""

T = TypeVar("T", bound=KubernetesObject)

log = structlog.get_logger()


class Collection(Generic[T]):
    """A selection of objects of one kind."""

    def __init__(self, path: str, selection: Mapping[str, str], kind: type[T]) -> None:
        """Select objects of the type `kind`; `path` and `selection` as for `KubernetesApi.list_objects`."""
        self.path = path
        self.selection = dict(selection)
        self.kind = kind


class Reflector(Generic[T]):
    """Keeps `objects` equal to a collection."""

    def __init__(
        self,
        api: KubernetesApi,
        collection: Collection[T],
        on_change: Callable[[], None],
        *,
        rng: Random,
        had_objects: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a copy without objects; `run` fills it.

        Args:
            on_change: called after `objects` has changed, and after the first list.
            rng: adds jitter to the waits between requests.
            had_objects: whether an earlier copy had objects, so that an empty first list must be confirmed.
            clock: monotonic, in seconds.
        """
        self.objects: dict[str, T] = {}
        """The last valid version of each object, by name."""
        self.synced = False
        """Whether the collection has been listed."""
        self.heard_at: float | None = None
        """Time (s) at which the API server last responded."""
        self._api = api
        self._collection = collection
        self._on_change = on_change
        self._rng = rng
        self._had_objects = had_objects
        self._clock = clock
        self._version: str | None = None
        """The resource version from which to watch; None if a list is needed."""
        self._empty_since: float | None = None
        self._failure = ""
        self._invalid: dict[str, str] = {}
        """Problems of objects, by name."""

    @property
    def problem(self) -> str:
        """Why the last request failed, or why an object is invalid; empty if all objects are in force."""
        return self._failure or next(iter(self._invalid.values()), "")

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            began_at = self._clock()
            try:
                if self._version is None:
                    await self._list()
                await self._watch(self._version or "")
            except Expired as error:
                self._version = None
                log.info("watch expired; listing again", path=self._collection.path, reason=str(error))
            except KubernetesError as error:
                self._failed(str(error))
            # A watch that ends at once, for whatever reason, must not be repeated without a pause.
            failures = 0 if self._clock() - began_at > STEADY_S else failures + 1
            if failures:
                await asyncio.sleep(
                    full_jitter_s(failures - 1, base_s=BACKOFF_BASE_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
                )

    async def _list(self) -> None:
        collection = self._collection
        listed = await self._api.list_objects(collection.path, collection.selection, MAX_OBJECTS)
        self.heard_at = self._clock()
        if not listed.items and (self.objects or self._had_objects):
            if self._empty_since is None:
                self._empty_since = self.heard_at
            if self.heard_at - self._empty_since < CONFIRM_EMPTY_S:
                raise KubernetesError("the list is empty; the last objects stay until a later list confirms this")
        self._empty_since, self._had_objects, self._invalid = None, False, {}
        read = [self._read(item) for item in listed.items]
        self.objects = {item.metadata.name: item for item in read if item is not None}
        self.synced, self._version = True, listed.resource_version
        self._recovered()
        self._on_change()

    async def _watch(self, version: str) -> None:
        """Apply events until the server ends the watch; raises KubernetesError."""
        collection = self._collection
        async with aclosing(self._api.watch(collection.path, collection.selection, version)) as events:
            async for event in events:
                self.heard_at = self._clock()
                if event.type != OPENED.type:
                    self._apply(event)
                self._recovered()

    def _apply(self, event: Event) -> None:
        head = decoded(event.object, KubernetesObject).metadata
        if not head.resource_version:
            raise KubernetesError("an event has no resource version")
        self._version = head.resource_version
        if event.type == "DELETED":
            self.objects.pop(head.name, None)
            self._invalid.pop(head.name, None)
        elif event.type in ("ADDED", "MODIFIED"):
            if head.name not in self.objects and len(self.objects) >= MAX_OBJECTS:
                raise KubernetesError(f"more than {MAX_OBJECTS} objects; select fewer")
            item = self._read(event.object)
            if item is not None:
                self.objects[head.name] = item
        else:
            return
        self._on_change()

    def _read(self, raw: msgspec.Raw) -> T | None:
        """Return the decoded object, or its last valid version; None if no version was valid."""
        name = decoded(raw, KubernetesObject).metadata.name
        try:
            item = decoded(raw, self._collection.kind)
        except KubernetesError as error:
            self._invalid[name] = f"{name}: {error}"
            return self.objects.get(name)
        self._invalid.pop(name, None)
        return item

    def _failed(self, problem: str) -> None:
        if problem != self._failure:
            log.warning("Kubernetes API failed; the last objects stay", path=self._collection.path, problem=problem)
        self._failure = problem

    def _recovered(self) -> None:
        if self._failure:
            log.info("Kubernetes API answers again", path=self._collection.path)
        self._failure = ""
