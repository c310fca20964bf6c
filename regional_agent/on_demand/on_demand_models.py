"""Decides when the endpoints of models that are loaded on demand wake and sleep, by the rules of `penstock.on_demand`.

Decisions follow the load of a model and not single requests, so that requests that wait together cause one wake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import inf
from random import Random
from typing import Any, Final, NamedTuple, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from penstock.admission.region_queues import RegionQueues
from penstock.fleet.report import DemandReport
from penstock.on_demand.last_copy import CopyView, Scopes, may_be_last, scopes_of
from penstock.on_demand.pool_size import PoolLimits, PoolSeen, PoolSize, is_full, missing
from penstock.on_demand.wake_history import StepWakes, overdue_after_s
from penstock.planning.plan import RegionPlan, VersionShare
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from penstock.policy.model_versions import WHOLE_PERCENT
from penstock.policy.policy import Policy
from regional_agent.background_tasks import sleep_until_tick
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.on_demand.awake_endpoints import is_awake, is_unread, serving, sleeps, use_of
from regional_agent.on_demand.model_memory import (
    ModelMemory,
    Place,
    best_first,
    counts_as_one,
    of_other_models,
    sleeps_alone,
)
from regional_agent.on_demand.wake_attempts import WakeAttempts
from regional_agent.on_demand.wake_hooks import Action, WakeHooks

DECIDE_EVERY_S: Final = 0.5
"""Time (s) between two decisions."""

WANTED_S: Final = 2.0
"""Time (s) for which a request that found no ready endpoint counts as load."""

WITHOUT_ROOM_S: Final = 30.0
"""Time (s) for which other regions receive that no memory has room for a model, after a request has needed it."""

NO_ROOM: Final = "no room for "
"""Begins the text of a model that does not fit into the memory of an endpoint."""

HAD_TURN: Final = "for this step of its rollout, other models have left its memory before"
"""Why a new version without requests does not wake where other models would have to leave again."""

Candidate = TypeVar("Candidate", Endpoint, Endpoint | None)


class OtherParts(NamedTuple):
    """What decisions depend on beside the endpoints of the region."""

    region: str
    waits_s: Callable[[str], Mapping[str, float]]
    """Returns the other regions that have a ready endpoint of a model, with the expected wait (s) of one more
    request."""
    regions_with: Callable[[str], frozenset[str]]
    """Returns the other regions that have an endpoint of a model, ready or not, or of which that is not known yet."""
    sees_all_load: Callable[[], bool]
    """Whether the load of the region's other agents is known; without it, no endpoint falls asleep."""
    demand: Callable[[], Iterable[DemandReport]] = tuple
    """Returns the demand of this agent's clients."""
    in_use: Callable[[str], Mapping[str, int]] = lambda model: {}
    """Returns the slots of a model that are in use in other regions."""


class OnDemandModels:
    """The models of one agent that are loaded on demand."""

    def __init__(
        self, endpoints: EndpointSet, queues: RegionQueues[Any], hooks: WakeHooks, others: OtherParts, rng: Random
    ) -> None:
        """Create the state of an agent without a policy.

        Args:
            queues: the requests that wait count as load.
            rng: adds jitter to the time between two attempts.
        """
        self._endpoints = endpoints
        self._queues = queues
        self.attempts = WakeAttempts(endpoints, queues, hooks, rng)
        """What wakes endpoints and lets them sleep."""
        self.attempts.enough_without = lambda name: name not in self._models or self._beyond(self._models[name]) >= 0
        self.attempts.could_wake = self._could_wake
        self.memory = ModelMemory(endpoints, queues, self.attempts, self._spare)
        """The memories of the endpoints."""
        self._others = others
        self._scopes: Scopes = frozenset()
        self._clock = time.monotonic
        self._policy: Policy | None = None
        self.plan: RegionPlan | None = None
        """The plan in force; None before the first."""
        self._models: dict[str, Model] = {}
        self._ending: dict[str, Model] = {}
        """Those of `_models` that policy no longer loads on demand, with an endpoint that has not been awake since."""
        self._sizes: dict[str, PoolSize] = {}
        self._steps: dict[str, StepWakes] = {}
        self._wanted_at: dict[str, float] = {}
        """Time (s) at which a request last found no ready endpoint, by model."""
        self._needed: dict[str, tuple[float, int]] = {}
        """Then, the endpoints that serve when another one has woken: those that do may be too short for the request."""
        self._without_room_until: dict[str, float] = {}
        """Time (s) until which no endpoint of a model counts as one that can serve, since no memory will have room."""
        self.without_room_s: dict[str, float] = {}
        """Time (s) in which requests for a model needed an endpoint and no memory had room, by model."""
        self._releases: dict[str, int] = {}
        """Requests that had ended on the endpoints at the last decision, by model."""

    def use_policy(self, policy: Policy) -> None:
        """Use the models of a policy from now on. The endpoints use the policy before.

        A model that stays without its `on_demand` stays on demand here and at the endpoints until all of them are
        awake, since nothing else wakes what sleeps, and engines list as loaded what sleeps.
        """
        self._policy = policy
        on_demand = {name: model for name, model in policy.models.items() if model.on_demand is not UNSET}
        self._ending = {
            name: replace(policy.models[name], on_demand=model.on_demand)
            for name, model in self._models.items()
            if name in policy.models and name not in on_demand
        }
        if self._ending:
            self._endpoints.use_policy(replace(policy, models={**policy.models, **self._ending}))
        self._models = self.memory.models = on_demand | self._ending
        self._scopes = scopes_of(policy, self._others.region) if self._models else frozenset()
        self._sizes = {name: self._sizes.get(name) or PoolSize() for name in self._models}
        self._steps = {name: self._steps.get(name) or StepWakes() for name in self._models}
        self.attempts.forget_others(frozenset(self._models))

    def may_wake(self, model: Model, within_s: float, permitted: frozenset[str]) -> bool | None:
        """Whether an endpoint of a model is expected to wake within `within_s` seconds: here or, if no memory will have
        room, in another one of the regions that the request may use. None if none sleeps or wakes.

        The caller has a request that no ready endpoint can serve, so that an endpoint wakes in any case.
        """
        known = self._models.get(model.name)
        if known is None:
            return None
        self._wanted_at[model.name] = now = self._clock()
        self._needed[model.name] = now, serving(self._awake(model.name)) + 1
        ready_in_s = self._ready_in_s(known, now)
        if ready_in_s == inf:
            if not self._asleep(known):
                return None
            # Without room, an endpoint sleeps that will not wake.
            ready_in_s = self._cold_start_s(known) if self._others.regions_with(model.name) & permitted else inf
        return ready_in_s <= within_s

    def has_room(self, model: str) -> bool:
        """Whether an endpoint of a model serves or may wake, as far as is known; False has other regions serve it."""
        return self._clock() >= self._without_room_until.get(model, -inf)

    def wanted_by(self, origin: str, model: str) -> None:
        """Count a request of another region's clients, unless a nearer region has an endpoint of the model that the
        request may use. Which requests are meant is unknown, so it counts if this is the nearest region for any."""
        if model in self._models and self._is_nearest(origin, model):
            self._wanted_at[model] = self._clock()

    def _is_nearest(self, origin: str, model: str) -> bool:
        """Whether this is the nearest region with an endpoint of a model for any request that enters in another one."""
        policy, region = self._policy, self._others.region
        if policy is None or origin not in policy.regions:
            return False
        regions = self._others.regions_with(model) | {region}
        scopes = (scope for scope in self._scopes if origin in scope)
        return any(policy.nearest_first(origin, regions & scope)[0] == region for scope in scopes)

    def can_wake_any(self) -> bool:
        """Whether the region has a model of which an endpoint sleeps or wakes."""
        return any(self.attempts.waking_since(name) or self._asleep(model) for name, model in self._models.items())

    def cold_starts_s(self) -> dict[str, float]:
        """The expected cold start (s) by model."""
        return {name: self._cold_start_s(model) for name, model in self._models.items()}

    def asleep(self) -> frozenset[str]:
        """The names of the endpoints that have nothing to serve, because a model sleeps."""
        sleeping = (each for model in self._models.values() for each in self._asleep(model))
        return frozenset(each.name for each in sleeping if each is not None and not each.models)

    async def keep_deciding(self) -> None:
        """Decide for each model periodically, until cancelled."""
        while True:
            await sleep_until_tick(DECIDE_EVERY_S)
            self.memory.tick()
            for model in list(self._models.values()):
                self.decide(model)

    def decide(self, model: Model) -> None:
        """Wake endpoints of one model, or let one fall asleep, if its load asks for that."""
        now, on_demand, name = self._clock(), _of(model), model.name
        awake = self._awake(name)
        for ready in awake:
            self.attempts.is_awake(ready, name)
            self._without_room_until.pop(name, None)
        if name in self._ending:
            self._wake_all(model)
            return
        seen, limits, step = self._seen(model, awake, now), self._limits(model, now), self._next_step(name)
        self._steps[name].add(step, (each.name for each in awake))
        with_step = seen if step is None else seen._replace(load=max(seen.load, self._load_at(step)))
        change = self._sizes[name].change(with_step, limits, now)
        if change <= 0:
            for asleep in self._asleep(model):
                _state_room(asleep, name, "")
        if change > 0:
            self._wake(model, change, missing(seen, limits))
        elif (
            change < 0
            and self._others.sees_all_load()
            # Until Redis has answered its claim, an endpoint that is to sleep still counts as awake.
            and not any(self.attempts.is_busy(each, name) for each in awake)
        ):
            idle = self._due(Action.SLEEP, [each for each in awake if sleeps_alone(each, on_demand)], name)
            if idle:
                self.attempts.let_sleep(min(idle, key=partial(use_of, name)), name, on_demand)

    def _wake(self, model: Model, most: float = inf, for_requests: float = inf) -> None:
        """Begin to wake the endpoints that can wake now, at most this number of them, those with free memory first.

        Args:
            for_requests: how many of them requests need; the step of a rollout needs the others.
        """
        due = self._due(Action.WAKE, self._asleep(model), model.name)
        begun, problem, now = 0, "", self._clock()
        if due and not self._awake(model.name) and self._ready_in_s(model, now) == inf:
            self._without_room_until[model.name] = now + WITHOUT_ROOM_S
        else:
            self._without_room_until.pop(model.name, None)
        for place in best_first([Place(each, self.memory.room(each, model.name)) for each in due]):
            # What has begun for another endpoint may have taken the room.
            endpoint, room = place.endpoint, self.memory.room(place.endpoint, model.name) if begun else place.room
            problem = room.problem
            had_turn = endpoint is not None and not self._steps[model.name].may_evict(endpoint.name)
            if room.leaving and had_turn and begun >= for_requests:
                problem = HAD_TURN
            _state_room(endpoint, model.name, problem)
            if not problem and begun < most:
                begun += 1
                leaving = self.memory.leaving(room)
                self.attempts.wake(endpoint, model.name, _of(model), model.scaling.cold_start_s, leaving)
        if problem and not begun and for_requests > 0:
            self.without_room_s[model.name] = self.without_room_s.get(model.name, 0.0) + DECIDE_EVERY_S

    def _wake_all(self, model: Model) -> None:
        """Wake each endpoint of a model that policy no longer loads on demand; forget the model when all are awake."""
        name, policy = model.name, self._policy
        # An endpoint that operators drain, or that fails, may sleep when it returns.
        every = [each for each in self._endpoints.every() if name in each.spec.models and not each.spec.burst]
        if policy is None or not all(is_awake(each, name) and not self.attempts.is_busy(each, name) for each in every):
            self._wake(model)
            return
        del self._models[name]
        self._endpoints.use_policy(policy)
        self.use_policy(policy)

    def _due(self, action: Action, endpoints: Iterable[Candidate], model: str) -> list[Candidate]:
        """Return the endpoints at which an attempt may begin now."""
        attempts, now = self.attempts, self._clock()
        return [
            each
            for each in endpoints
            if not attempts.is_busy(each, model) and attempts.not_before(action, each, model) <= now
        ]

    def _could_wake(self, model: str) -> list[Endpoint | None]:
        known = self._models.get(model)
        return self._due(Action.WAKE, self._asleep(known), model) if known is not None else []

    def _seen(self, model: Model, awake: list[Endpoint], now: float) -> PoolSeen:
        name = model.name
        # vLLM accepts requests while it sleeps, which then wait for its wake: another agent may have sent some.
        stuck = sum(
            each.view.in_flight for each in self._configured(name) if sleeps(each, name) and len(each.spec.models) == 1
        )
        pool = self._endpoints.pools[name]
        others = sum(of_other_models(each, name) for each in pool.endpoints if each.view.ready)
        load = float(max(0, pool.in_flight - others) + self._queues.waiting(name) + stuck)
        releases = sum(endpoint.releases for endpoint in awake if counts_as_one(endpoint))
        if not load and (
            releases > self._releases.get(name, releases)
            or now - self._wanted_at.get(name, -inf) < WANTED_S
            or self._finds_no_slot(name)
        ):
            load = 1.0
        self._releases[name] = releases
        slots = [each.spec.slots for each in self._configured(name)]
        mean_slots = sum(slots) / len(slots) if slots else float(model.scaling.slots_per_endpoint)
        overdue_s = overdue_after_s(self._cold_start_s(model))
        waking = sum(now - since < overdue_s for since in self.attempts.waking_since(name))
        # Another agent may have woken an endpoint that answers this agent's synthetic requests now.
        coming = [each for each in self._configured(name) if is_unread(each) or each in self._warming(name)]
        waking += sum(not self.attempts.is_busy(each, name) for each in coming)
        return PoolSeen(serving(awake), waking, load, mean_slots)

    def _next_step(self, model: str) -> VersionShare | None:
        """Return the share of a new version for the next step of whose rollout endpoints wake; None if none is due."""
        policy, plan = self._policy, self.plan
        if policy is None or plan is None:
            return None
        due = (share for share in plan.version_shares if share.to == model and share.next_percent)
        return next((share for share in due if plan.version_share(policy, share.name) is share), None)

    def _load_at(self, step: VersionShare) -> float:
        """Return the requests that a rollout gives a new version here with its next step, at least one: the step waits
        for endpoints with slots for it. Requests that run where no endpoint of it is go to the nearest region."""
        assert self._policy is not None
        names = [each.model for each in self._policy.versions[step.name].versions]
        load = sum(self._endpoints.pools[name].in_flight + self._queues.waiting(name) for name in names)
        elsewhere = self._others.regions_with(step.to)
        for name in names:
            without = {region: used for region, used in self._others.in_use(name).items() if region not in elsewhere}
            load += sum(used for region, used in without.items() if used and self._is_nearest(region, step.to))
        return max(1.0, load * step.next_percent / WHOLE_PERCENT)

    def _finds_no_slot(self, model: str) -> bool:
        """Whether requests of this agent's clients for a model, which this region may serve, wait in other regions."""
        region, demand = self._others.region, self._others.demand()
        asked = [each for each in demand if each.model == model and each.requests_per_s > 0.0]
        scopes = [each.regions for each in asked if region in each.regions]
        return bool(scopes) and is_full(scopes, self._others.waits_s(model))

    def _limits(self, model: Model, now: float) -> PoolLimits:
        scaling, on_demand = model.scaling, _of(model)
        at, needed = self._needed.get(model.name, (-inf, 0))
        return PoolLimits(
            max(scaling.min_endpoints, needed if now - at < WANTED_S else 0),
            scaling.max_endpoints,
            self._policy.spillover.target_utilisation if self._policy is not None else 1.0,
            on_demand.idle_s,
            self._keeps_last(model),
        )

    def _keeps_last(self, model: Model) -> bool:
        """Whether the last awake endpoint of a model in the region stays awake."""
        if _of(model).scale_to_zero:
            return False
        ready = frozenset(self._others.waits_s(model.name))
        return may_be_last(CopyView(self._others.region, ready, self._scopes))

    def _spare(self, model: Model) -> int:
        """Return how many endpoints of a model may sleep so that another model has room."""
        awake = self._awake(model.name)
        if not self._others.sees_all_load() or any(self.attempts.is_busy(each, model.name) for each in awake):
            return 0
        return self._beyond(model)

    def _beyond(self, model: Model) -> int:
        """Return how many endpoints of a model serve besides those that have to."""
        return serving(self._awake(model.name)) - max(model.scaling.min_endpoints, int(self._keeps_last(model)))

    def _configured(self, model: str) -> list[Endpoint]:
        every = (each for each in self._endpoints.every() if not each.spec.burst)
        return [each for each in every if model in each.spec.models and not each.view.draining]

    def _warming(self, model: str) -> list[Endpoint]:
        return [each for each in self._configured(model) if each.health.ready and each.reported.warms_up(model)]

    def _awake(self, model: str) -> list[Endpoint]:
        return [each for each in self._endpoints.pools[model].endpoints if each.health.ready and not each.view.draining]

    def _asleep(self, model: Model) -> list[Endpoint | None]:
        """Return the endpoints that can wake, the longest context first; None for one that a webhook has to create."""
        name, by_webhook = model.name, _of(model).wake is WakeMethod.WEBHOOK
        known = sorted(self._configured(name), key=lambda each: -each.reported.context_tokens(name))
        if not known:
            return [None] if by_webhook and self._creates(name) else []
        refused = [each for each in known if each.health.ready and name in each.reported.refused]
        excluded = refused + [each for each in known if is_unread(each)]
        return [each for each in known if each.usable and each not in excluded and sleeps(each, name)]

    def _creates(self, model: str) -> bool:
        """Whether a webhook is asked for an endpoint here: no other region has one that the same requests may use, and
        the directories of the region list none."""
        if not self._endpoints.sources.discovery.has_answered():
            return False
        others = self._others.regions_with(model)
        return any(not others & scope for scope in self._scopes)

    def _cold_start_s(self, model: Model) -> float:
        return self.attempts.cold_start_s(model.name, model.scaling.cold_start_s)

    def _ready_in_s(self, model: Model, now: float) -> float:
        """Time (s) in which an endpoint of a pool without a ready one is expected to be ready; infinite for none."""
        cold_start_s, attempts = self._cold_start_s(model), self.attempts
        begun = [max(0.0, since + cold_start_s - now) for since in attempts.waking_since(model.name)]
        later = [
            max(attempts.not_before(Action.WAKE, each, model.name) - now, self.memory.room(each, model.name).in_s, 0.0)
            + cold_start_s
            for each in self._asleep(model)
            if not attempts.is_busy(each, model.name)
        ]
        later += [0.0 for _ in self._warming(model.name)]
        # A request keeps such an endpoint awake, or it wakes after it has fallen asleep.
        later += [cold_start_s for each in self._configured(model.name) if model.name in each.reported.going]
        return min(begun + later, default=inf)


def _state_room(endpoint: Endpoint | None, model: str, problem: str) -> None:
    """Let operators see why a model does not wake on an endpoint."""
    text = f"{NO_ROOM}{model}: {problem}" if problem else ""
    if endpoint is not None and (text or endpoint.reported.wake_problem.startswith(f"{NO_ROOM}{model}:")):
        endpoint.reported.wake_problem = text


def _of(model: Model) -> OnDemand:
    assert model.on_demand is not UNSET
    return model.on_demand
