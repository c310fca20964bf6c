"""The memories of the region's endpoints, and the room in them, by the rules of `penstock.on_demand.model_eviction`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, NamedTuple

from msgspec import UNSET

from penstock.admission.region_queues import RegionQueues
from penstock.on_demand.model_eviction import IN_USE, HeldModel, Room, find_room
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from penstock.policy.policy import BYTES_PER_GB
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.on_demand.wake_attempts import Leaving, WakeAttempts, in_use

OTHER: str = "what policy does not load on demand"
"""Stands for what an engine has loaded beside the models on demand."""

AMPLE = Room()
"""The room of an endpoint whose memory is not limited."""


class Place(NamedTuple):
    """An endpoint on which a model can be loaded, with the room for it. None: a webhook creates an endpoint."""

    endpoint: Endpoint | None
    room: Room


class ModelMemory:
    """The memories of one agent's endpoints."""

    def __init__(
        self,
        endpoints: EndpointSet,
        queues: RegionQueues[Any],
        attempts: WakeAttempts,
        spare: Callable[[Model], int],
    ) -> None:
        """Create the memories.

        Args:
            queues: models with waiting requests are in use.
            attempts: what loads or leaves now stays as it is.
            spare: returns how many endpoints of a model may sleep although it may be needed elsewhere.
        """
        self._endpoints = endpoints
        self._queues = queues
        self._attempts = attempts
        self._spare = spare
        self.models: Mapping[str, Model] = {}
        """The models that are loaded on demand."""

    def tick(self) -> None:
        """Record which models are in use and loaded now. Called periodically."""
        for endpoint in self._endpoints.every():
            if endpoint.uses is not None:
                endpoint.uses.tick(endpoint.loaded_models if endpoint.health.ready else (), endpoint.now())

    def room(self, endpoint: Endpoint | None, model: str) -> Room:
        """Return the room for a model that sleeps, in the memory of one of its endpoints."""
        if endpoint is None or endpoint.spec.memory_gb is None:
            return AMPLE
        sharing = self._sharing(endpoint)
        total_bytes = min(each.spec.memory_gb or inf for each in sharing) * BYTES_PER_GB
        if self._attempts.loads_into(endpoint.spec.memory):
            # What is loaded then decides; until then, requests may wait.
            return Room((), 0.0, "another model is loaded into its memory")
        if any(each.health.ready and each.reported.listed_at == -inf for each in sharing):
            return Room((), 0.0, "its engine has not answered yet what is loaded")
        held = [each for member in sharing for each in self._held(member)]
        counts = Counter(each.model for each in held)
        spare = {name: self._spare(known) for name, known in self.models.items() if counts[name]}
        return find_room(self._size_bytes(endpoint, model), total_bytes, held, spare)

    def leaving(self, room: Room) -> tuple[Leaving, ...]:
        """Return the endpoints and models that leave for a model to have room."""
        by_name = {each.name: each for each in self._endpoints.every()}
        found = []
        for held in room.leaving:
            on_demand = self.models[held.model].on_demand
            assert on_demand is not UNSET
            found.append(Leaving(by_name[held.endpoint], held.model, on_demand))
        return tuple(found)

    def _sharing(self, endpoint: Endpoint) -> list[Endpoint]:
        memory = endpoint.spec.memory
        return [each for each in self._endpoints.every() if each.spec.memory == memory and each.spec.memory_gb]

    def _held(self, endpoint: Endpoint) -> Iterator[HeldModel]:
        now, uses = endpoint.now(), endpoint.uses
        reported = endpoint.reported
        if not endpoint.health.ready:
            return
        if reported.other_bytes:
            yield HeldModel(endpoint.name, OTHER, reported.other_bytes, IN_USE, inf)
        for name in endpoint.loaded_models:
            is_used = uses is None or in_use(endpoint, name) or self._queues.waiting(name) > 0
            idle_s = IN_USE if uses is None or is_used else uses.idle_s(name, now)
            after_s = inf if endpoint.view.draining else self._leaves_after_s(endpoint, name)
            yield HeldModel(endpoint.name, name, self._size_bytes(endpoint, name), idle_s, after_s)

    def _leaves_after_s(self, endpoint: Endpoint, name: str) -> float:
        model = self.models.get(name)
        if model is None or model.on_demand is UNSET or self._attempts.is_busy(endpoint, name):
            return inf
        on_demand = model.on_demand
        return on_demand.evict_after_s if on_demand.evict_after_s and sleeps_alone(endpoint, on_demand) else inf

    def _size_bytes(self, endpoint: Endpoint, name: str) -> float:
        reported, model = endpoint.reported.size_bytes.get(name), self.models.get(name)
        if reported is not None:
            return reported
        stated = UNSET if model is None or model.on_demand is UNSET else model.on_demand.memory_gb
        return 0.0 if stated is UNSET else stated * BYTES_PER_GB


def best_first(places: list[Place]) -> list[Place]:
    """Order places: those with free memory first, then those whose leaving models were used longest ago."""
    return sorted(places, key=lambda place: max((-each.idle_s for each in place.room.leaving), default=-inf))


def counts_as_one(endpoint: Endpoint) -> bool:
    """Whether every request of an endpoint counts as load of each of its models."""
    return endpoint.uses is None or len(endpoint.spec.models) == 1


def of_other_models(endpoint: Endpoint, model: str) -> int:
    """Return how many of an endpoint's requests are for its other models."""
    uses = endpoint.uses
    if uses is None or len(endpoint.spec.models) == 1 or endpoint.view.draining:
        return 0
    # Other agents publish which models they use, and how many requests they have on the endpoint.
    elsewhere = endpoint.remote_load.requests if uses.runs_elsewhere(model, endpoint.now()) else 0
    return endpoint.view.in_flight - uses.running(model) - elsewhere


def sleeps_alone(endpoint: Endpoint, on_demand: OnDemand) -> bool:
    """Whether no other model of the endpoint sleeps with it: vLLM sleeps as a whole, and a webhook stops all."""
    return len(endpoint.spec.models) == 1 or on_demand.wake in (WakeMethod.OLLAMA, WakeMethod.TRITON)
