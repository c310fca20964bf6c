"""Attempts to wake an endpoint, or to let it sleep: one at a time for an endpoint and a model, each bounded in time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

import structlog
from msgspec.structs import replace

from penstock.admission.region_queues import RegionQueues
from penstock.fleet.shared_counts import FRESH_S
from penstock.on_demand.wake_history import Attempts, ColdStarts
from penstock.policy.kinds.on_demand import OnDemand
from regional_agent.background_tasks import cancel
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.on_demand.wake_claims import EVERY_ENDPOINT, TIMEOUT_S
from regional_agent.on_demand.wake_hooks import Action, HookFailed, WakeHooks

DRAIN_S: Final = 60.0
"""Maximum time (s) for which an endpoint that is to sleep finishes its requests."""

SETTLE_S: Final = 60.0
"""Time (s) after the answer of a hook within which the endpoint does what was asked for; a wake has twice the expected
cold start if that is longer."""

_POLL_S: Final = 0.05
_NONE: Final = Attempts()

KEPT_S: Final = 3.0
"""Time (s) after the end of a delay for which an agent keeps the claim of an endpoint that it could not wake."""

CLAIM_S: Final = 15.0
"""Lifetime (s) of a claim that is renewed: of a memory while a model is loaded, of an endpoint that could not be woken
until the next attempt."""

GIVEN_BACK_S: Final = 0.0
"""Lifetime (s) by which an agent gives a claim back."""

CLAIMED_ELSEWHERE_S: Final = 2.0
"""Time (s) after which an agent asks again for a memory into which another agent loads a model."""

SEEN_AFTER_PROBES: Final = 2.0
"""Intervals of health probes after which all agents of the region have seen what an ended attempt came to."""

log = structlog.get_logger()


Wake = Callable[[], Coroutine[Any, Any, bool]]
"""Wakes an endpoint; returns whether this agent did."""


class Leaving(NamedTuple):
    """A model that leaves the memory of an endpoint, so that another one has room."""

    endpoint: Endpoint
    model: str
    on_demand: OnDemand


class WakeAttempts:
    """The attempts of one agent."""

    def __init__(self, endpoints: EndpointSet, queues: RegionQueues[Any], hooks: WakeHooks, rng: Random) -> None:
        """Create the attempts.

        Args:
            queues: an endpoint does not fall asleep while requests for its model wait.
            rng: adds jitter to the time between two attempts.
        """
        self._endpoints = endpoints
        self._queues = queues
        self._hooks = hooks
        self._rng = rng
        self._clock = time.monotonic
        self.enough_without: Callable[[str], bool] = lambda model: True
        """Returns whether enough endpoints of a model serve, without one that is about to sleep."""
        self.could_wake: Callable[[str], Sequence[Endpoint | None]] = lambda model: ()
        """Returns the endpoints of a model at which another attempt to wake may begin now."""
        self._tried: dict[tuple[Action, str, str], Attempts] = {}
        """By action, endpoint and model; the endpoint is empty where a webhook has to create one."""
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._followed: set[tuple[str, str]] = set()
        """Endpoint and model of the wakes of other agents that make one of this agent needless."""
        self._waits: dict[tuple[str, str], asyncio.Task[None]] = {}
        """Keep the claims of endpoints and models that this agent tries again to wake."""
        self._waking_since: dict[tuple[str, str], float] = {}
        self._cold_starts: dict[str, ColdStarts] = {}
        self._loading: Counter[str] = Counter()
        """Attempts that load a model, by name of the memory."""
        self.counts: Counter[tuple[str, Action, str]] = Counter()
        """Ended attempts by model, action and result: `succeeded` or `failed`."""
        self.load_s: dict[str, float] = {}
        """Time (s) of the wakes that succeeded, from their beginning until the endpoint was ready, by model."""
        self.evicted: Counter[str] = Counter()
        """Endpoints that were put to sleep so that another model has room, by model."""

    def is_busy(self, endpoint: Endpoint | None, model: str) -> bool:
        """Whether an attempt runs, or one of this agent waits for that of another agent."""
        key = _name(endpoint), model
        return key in self._tasks or key in self._followed

    def loads_into(self, memory: str) -> bool:
        """Whether an attempt loads a model into a memory. One at a time does, so that what it needs is known."""
        return self._loading[memory] > 0

    def not_before(self, action: Action, endpoint: Endpoint | None, model: str) -> float:
        """Time (s) before which no further attempt begins."""
        return self._tried.get((action, _name(endpoint), model), _NONE).not_before

    def is_awake(self, endpoint: Endpoint, model: str) -> None:
        """Forget failures to wake an endpoint that is awake, by whatever cause."""
        if self._tried.pop((Action.WAKE, endpoint.name, model), None) is not None:
            endpoint.reported.wake_problem = ""
            self._end_wait((endpoint.name, model))

    def waking_since(self, model: str) -> list[float]:
        """Times (s) since which endpoints of a model wake."""
        return [since for (_, name), since in self._waking_since.items() if name == model]

    def cold_start_s(self, model: str, prior_s: float) -> float:
        """The expected cold start (s) of a model; `prior_s` before the first is measured."""
        known = self._cold_starts.get(model)
        return prior_s if known is None else known.expected_s(prior_s)

    def forget_others(self, models: frozenset[str]) -> None:
        """Stop the attempts of all models except these, and forget what earlier ones came to."""
        for (_, model), task in self._tasks.items():
            if model not in models:
                task.cancel()
        for key in [key for key in self._waits if key[1] not in models]:
            self._end_wait(key)
        self._tried = {key: tried for key, tried in self._tried.items() if key[2] in models}
        self._cold_starts = {model: known for model, known in self._cold_starts.items() if model in models}

    def wake(
        self,
        endpoint: Endpoint | None,
        model: str,
        on_demand: OnDemand,
        prior_s: float,
        leaving: Sequence[Leaving] = (),
    ) -> None:
        """Begin to wake an endpoint; None asks a webhook for one.

        Args:
            prior_s: the cold start (s) before the first is measured.
            leaving: what is put to sleep before, so that the model has room.
        """
        key = _name(endpoint), model
        self._end_wait(key)
        self._waking_since[key] = self._clock()
        wake = partial(self._wake, endpoint, model, on_demand, prior_s)
        if endpoint is not None and endpoint.spec.memory_gb is not None:
            # Counted now, since the next decision comes before the task begins.
            self._loading[endpoint.spec.memory] += 1
            wake = partial(self._wake_with_room, endpoint, model, leaving, wake)
        self._begin(Action.WAKE, key, endpoint, self._wake_claimed(endpoint, model, on_demand, wake))

    def let_sleep(self, endpoint: Endpoint, model: str, on_demand: OnDemand) -> asyncio.Task[None]:
        """Begin to let a model of an endpoint sleep. It receives no new requests, and finishes its own."""
        work = self._let_sleep(endpoint, model, on_demand)
        return self._begin(Action.SLEEP, (endpoint.name, model), endpoint, work)

    async def stop(self) -> None:
        """Stop all attempts; the engines complete what they have begun, and other agents repeat what has failed."""
        await cancel([*self._tasks.values(), *self._waits.values()])
        with suppress(TimeoutError):
            async with asyncio.timeout(TIMEOUT_S):
                for name, model in self._waits:
                    await self._hooks.claims.claim(name, model, GIVEN_BACK_S, waits=True)
        await self._hooks.claims.close()

    def _begin(
        self, action: Action, key: tuple[str, str], endpoint: Endpoint | None, work: Coroutine[Any, Any, bool]
    ) -> asyncio.Task[None]:
        task = asyncio.create_task(self._attempt(action, key, endpoint, work), name=f"{action} {key}")
        self._tasks[key] = task
        memory = endpoint.spec.memory if action is Action.WAKE and endpoint is not None else ""
        task.add_done_callback(lambda _: self._ended(key, memory, work))
        return task

    def _ended(self, key: tuple[str, str], memory: str, work: Coroutine[Any, Any, bool]) -> None:
        # A task that is cancelled before its first step has not begun to await it.
        work.close()
        del self._tasks[key]
        self._waking_since.pop(key, None)
        self._loading[memory] = max(0, self._loading[memory] - 1)

    async def _attempt(
        self, action: Action, key: tuple[str, str], endpoint: Endpoint | None, work: Coroutine[Any, Any, bool]
    ) -> None:
        name, model = key
        problem = ""
        try:
            if not await work:
                return
            self._tried.pop((action, *key), None)
            log.info("endpoint changed on demand", action=action.value, endpoint=name, model=model)
        except HookFailed as error:
            now = self._clock()
            tried = self._tried.get((action, *key), _NONE).failed(str(error), now, self._rng)
            self._tried[action, name, model] = tried
            if action is Action.WAKE:
                # The other agents of the region leave the next attempt to this one, as long as it lives.
                keeps = self._keep_claim(name, model, tried.not_before + KEPT_S, waits=True)
                self._waits[key] = asyncio.create_task(keeps, name=f"claim of {key}")
            problem = f"{action.value} of {model} failed {tried.failures} times: {error}"
            log.warning("endpoint not changed on demand", action=action.value, endpoint=name, problem=problem)
        self.counts[model, action, "failed" if problem else "succeeded"] += 1
        if endpoint is not None:
            endpoint.reported.wake_problem = problem

    async def _wake(self, endpoint: Endpoint | None, model: str, on_demand: OnDemand, prior_s: float) -> bool:
        """Returns whether this agent woke the endpoint; False if another agent does."""
        began_at, is_ready = self._clock(), partial(self._is_ready, endpoint, model)
        # Other models may have taken long to leave, and the other endpoints do not matter by then.
        if not await self._hooks.claims.claim(_name(endpoint), model, on_demand.timeout_s):
            return False
        await self._hooks.run(Action.WAKE, model, endpoint, on_demand)
        if endpoint is not None:
            endpoint.probe_now.set()
        within_s = max(SETTLE_S, 2.0 * self.cold_start_s(model, prior_s))
        until = self._clock() + within_s
        while not is_ready():
            if self._clock() >= until:
                raise HookFailed(f"not ready {within_s:g} s after the hook answered")
            # A cold start may take longer than the claim, which is short so that another agent replaces one that died.
            await self._hooks.claims.claim(_name(endpoint), model, on_demand.timeout_s)
            await self._until(is_ready, min(on_demand.timeout_s / 2.0, until - self._clock()))
        took_s = self._clock() - began_at
        self._cold_starts.setdefault(model, ColdStarts()).add(took_s)
        self.load_s[model] = self.load_s.get(model, 0.0) + took_s
        await self._hooks.claims.claim(_name(endpoint), model, _until_seen_s(endpoint))
        return True

    async def _claims_wake(self, endpoint: Endpoint | None, model: str, on_demand: OnDemand) -> bool:
        """Claim an endpoint to wake it. If another agent wakes it, or another one that this agent would wake as well,
        wait until that one is ready: agents may prefer different endpoints of a cold pool, which needs one wake."""
        choices = endpoint, *self.could_wake(model)
        found = await self._hooks.claims.claim_one([_name(each) for each in choices], model, on_demand.timeout_s)
        if found == 0:
            return True
        if found < 0:
            # Another endpoint may wake meanwhile.
            tried = self._tried.get((Action.WAKE, _name(endpoint), model), _NONE)
            later = replace(tried, not_before=self._clock() + CLAIMED_ELSEWHERE_S)
            self._tried[Action.WAKE, _name(endpoint), model] = later
            return False
        followed = choices[found - 1]
        key = _name(followed), model
        self._followed.add(key)
        try:
            await self._until(partial(self._is_ready, followed, model), on_demand.timeout_s)
        finally:
            self._followed.discard(key)
        return False

    def _is_ready(self, endpoint: Endpoint | None, model: str) -> bool:
        if endpoint is None:
            return self._endpoints.pools[model].ready > 0
        return endpoint.health.ready and model in endpoint.models

    async def _wake_claimed(self, endpoint: Endpoint | None, model: str, on_demand: OnDemand, wake: Wake) -> bool:
        """Wake the endpoint unless another agent does. While that one has the claim, nothing leaves a memory."""
        return await self._claims_wake(endpoint, model, on_demand) and await wake()

    async def _wake_with_room(self, endpoint: Endpoint, model: str, leaving: Sequence[Leaving], wake: Wake) -> bool:
        """Put to sleep what leaves, then wake the endpoint. Returns whether this agent did."""
        claims, memory = self._hooks.claims, f"memory of {endpoint.spec.memory}"
        # Two agents that load different models would each count on the same room.
        if not await claims.claim(memory, "", CLAIM_S):
            await self._until(lambda: False, CLAIMED_ELSEWHERE_S)
            return False
        keeps = asyncio.create_task(self._keep_claim(memory, "", inf), name=f"claim of {memory}")
        try:
            for each in leaving:
                if not await self._leave(each, model):
                    return False
            return await wake()
        finally:
            await cancel([keeps])
            await claims.claim(memory, "", _until_seen_s(endpoint))

    async def _leave(self, leaving: Leaving, other: str) -> bool:
        """Put a model to sleep so that `other` has room. Returns whether it left; False if it was used since it was
        chosen, which a claim and the models that leave before it may delay by minutes, or while it fell asleep.

        Raises:
            HookFailed: it could not be put to sleep.
        """
        endpoint, name, on_demand = leaving
        begun = self._tasks.get((endpoint.name, name))
        if begun is None and name in _loaded(endpoint):
            uses = endpoint.uses
            idle_s = inf if uses is None else uses.idle_s(name, endpoint.now())
            if in_use(endpoint, name) or self._is_awaited(name) or idle_s < on_demand.evict_after_s:
                return False
            begun = self.let_sleep(*leaving)
        if begun is not None:
            # It may fall asleep already because nothing uses it.
            await asyncio.wait((begun,))
        if name in _loaded(endpoint):
            if self.not_before(Action.SLEEP, endpoint, name) > self._clock():
                raise HookFailed(f"no room: {name} of {endpoint.name} stays loaded")
            return False
        self.evicted[name] += 1
        log.info("model left the memory of another", model=name, endpoint=endpoint.name, other=other)
        return True

    async def _keep_claim(self, endpoint: str, model: str, until: float, *, waits: bool = False) -> None:
        """Claim an endpoint until a time (s): in short terms, so that the claim ends soon after this agent has died."""
        while (left_s := until - self._clock()) > 0.0:
            await self._hooks.claims.claim(endpoint, model, min(CLAIM_S, left_s), waits=waits)
            if left_s <= CLAIM_S:
                break
            await asyncio.sleep(CLAIM_S / 3.0)

    def _end_wait(self, key: tuple[str, str]) -> None:
        if (keeps := self._waits.pop(key, None)) is not None:
            keeps.cancel()

    async def _let_sleep(self, endpoint: Endpoint, model: str, on_demand: OnDemand) -> bool:
        """Returns whether the model sleeps; False if it is needed, or another agent lets an endpoint sleep."""
        within_s = DRAIN_S + on_demand.timeout_s + SETTLE_S
        # Two agents that choose different endpoints would put the last two to sleep.
        if not await self._hooks.claims.claim(EVERY_ENDPOINT, model, within_s, without_redis=False):
            return False
        self._endpoints.fall_asleep(endpoint, endpoint.reported.falls_asleep | {model})
        try:
            if self._hooks.claims.are_shared:
                # Other agents have requests on the way until they receive that the endpoint falls asleep.
                await self._until(partial(self._is_awaited, model), FRESH_S)
            ended = await self._until(lambda: not in_use(endpoint, model) or self._is_awaited(model), DRAIN_S)
            # The last requests may have taken a minute, in which other copies may have failed.
            if not ended or self._is_awaited(model) or not self.enough_without(model):
                return False
            await self._hooks.run(Action.SLEEP, model, endpoint, on_demand)
            endpoint.probe_now.set()
            if not await self._until(lambda: model not in _loaded(endpoint), SETTLE_S):
                raise HookFailed(f"still loaded {SETTLE_S:g} s after the hook answered")
            endpoint.reported.slept_until[model] = endpoint.now() + _until_seen_s(endpoint)
            return True
        finally:
            self._endpoints.fall_asleep(endpoint, endpoint.reported.falls_asleep - {model})
            await self._hooks.claims.claim(EVERY_ENDPOINT, model, _until_seen_s(endpoint))

    def _is_awaited(self, model: str) -> bool:
        return self._queues.waiting(model) > 0

    async def _until(self, holds: Callable[[], bool], within_s: float) -> bool:
        """Wait until a condition holds, at most `within_s` seconds; returns whether it does."""
        until = self._clock() + within_s
        while not holds():
            if self._clock() >= until:
                return False
            await asyncio.sleep(_POLL_S)
        return True


def _name(endpoint: Endpoint | None) -> str:
    return "" if endpoint is None else endpoint.name


def _until_seen_s(endpoint: Endpoint | None) -> float:
    """How long (s) an agent keeps the claim of an attempt that has ended: until all see by their probes what it did.
    Then another agent may need what this one has just done or undone."""
    probes_s = 0.0 if endpoint is None else SEEN_AFTER_PROBES * endpoint.health_check.interval_s
    return max(CLAIMED_ELSEWHERE_S, probes_s)


def in_use(endpoint: Endpoint, model: str) -> bool:
    """Whether requests for a model run on an endpoint; where uses are not counted, requests for any of its models."""
    if not endpoint.view.in_flight or endpoint.uses is None:
        return endpoint.view.in_flight > 0
    return endpoint.uses.in_use(model, endpoint.now())


def _loaded(endpoint: Endpoint) -> tuple[str, ...]:
    return endpoint.loaded_models if endpoint.health.ready else ()
