"""Attempts to wake an endpoint, or to let it sleep: one at a time for an endpoint and a model, each bounded in time."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

import structlog

from penstock.on_demand.wake_history import Attempts, ColdStarts
from penstock.policy.kinds.on_demand import OnDemand
from regional_agent.background_tasks import cancel
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.on_demand.wake_claims import EVERY_ENDPOINT
from regional_agent.on_demand.wake_hooks import Action, HookFailed, WakeHooks
from regional_agent.routing.queue_dispatcher import QueueDispatcher

DRAIN_S: Final = 60.0
"""Maximum time (s) for which an endpoint that is to sleep finishes its requests."""

SETTLE_S: Final = 60.0
"""Time (s) after the answer of a hook within which the endpoint does what was asked for; a wake has twice the expected
cold start if that is longer."""

_POLL_S: Final = 0.05
_NONE: Final = Attempts()

log = structlog.get_logger()


class WakeAttempts:
    """The attempts of one agent."""

    def __init__(self, endpoints: EndpointSet, queue: QueueDispatcher, hooks: WakeHooks, rng: Random) -> None:
        """Create the attempts.

        Args:
            queue: an endpoint does not fall asleep while requests for its model wait.
            rng: adds jitter to the time between two attempts.
        """
        self._endpoints = endpoints
        self._queue = queue
        self._hooks = hooks
        self._rng = rng
        self._clock = time.monotonic
        self._tried: dict[tuple[Action, str, str], Attempts] = {}
        """By action, endpoint and model; the endpoint is empty where a webhook has to create one."""
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._waking_since: dict[tuple[str, str], float] = {}
        self._cold_starts: dict[str, ColdStarts] = {}
        self.counts: Counter[tuple[str, Action, str]] = Counter()
        """Ended attempts by model, action and result: `succeeded` or `failed`."""

    def is_busy(self, endpoint: Endpoint | None, model: str) -> bool:
        """Whether an attempt runs."""
        return (_name(endpoint), model) in self._tasks

    def not_before(self, action: Action, endpoint: Endpoint | None, model: str) -> float:
        """Time (s) before which no further attempt begins."""
        return self._tried.get((action, _name(endpoint), model), _NONE).not_before

    def is_awake(self, endpoint: Endpoint, model: str) -> None:
        """Forget failures to wake an endpoint that is awake, by whatever cause."""
        if self._tried.pop((Action.WAKE, endpoint.name, model), None) is not None:
            endpoint.reported.wake_problem = ""

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
        self._tried = {key: tried for key, tried in self._tried.items() if key[2] in models}
        self._cold_starts = {model: known for model, known in self._cold_starts.items() if model in models}

    def wake(self, endpoint: Endpoint | None, model: str, on_demand: OnDemand, prior_s: float) -> None:
        """Begin to wake an endpoint; None asks a webhook for one.

        Args:
            prior_s: the cold start (s) before the first is measured.
        """
        key = _name(endpoint), model
        self._waking_since[key] = self._clock()
        self._begin(Action.WAKE, key, endpoint, self._wake(endpoint, model, on_demand, prior_s))

    def let_sleep(self, endpoint: Endpoint, model: str, on_demand: OnDemand) -> None:
        """Begin to let a model of an endpoint sleep. It receives no new requests, and finishes its own."""
        work = self._let_sleep(endpoint, model, on_demand)
        self._begin(Action.SLEEP, (endpoint.name, model), endpoint, work)

    async def stop(self) -> None:
        """Stop all attempts; the engines complete what they have begun."""
        await cancel(list(self._tasks.values()))
        await self._hooks.claims.close()

    def _begin(
        self, action: Action, key: tuple[str, str], endpoint: Endpoint | None, work: Coroutine[Any, Any, bool]
    ) -> None:
        task = asyncio.create_task(self._attempt(action, key, endpoint, work), name=f"{action} {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._ended(key, work))

    def _ended(self, key: tuple[str, str], work: Coroutine[Any, Any, bool]) -> None:
        # A task that is cancelled before its first step has not begun to await it.
        work.close()
        del self._tasks[key]
        self._waking_since.pop(key, None)

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
            tried = self._tried.get((action, *key), _NONE).failed(str(error), self._clock(), self._rng)
            self._tried[action, name, model] = tried
            problem = f"{action.value} of {model} failed {tried.failures} times: {error}"
            log.warning("endpoint not changed on demand", action=action.value, endpoint=name, problem=problem)
        self.counts[model, action, "failed" if problem else "succeeded"] += 1
        if endpoint is not None:
            endpoint.reported.wake_problem = problem

    async def _wake(self, endpoint: Endpoint | None, model: str, on_demand: OnDemand, prior_s: float) -> bool:
        """Returns whether this agent woke the endpoint; False if another agent does."""
        began_at = self._clock()

        def is_ready() -> bool:
            if endpoint is None:
                return self._endpoints.pool(model).ready > 0
            return endpoint.health.ready and model in endpoint.models

        if not await self._hooks.claims.claim(_name(endpoint), model, on_demand.timeout_s):
            await self._until(is_ready, on_demand.timeout_s)
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
        self._cold_starts.setdefault(model, ColdStarts()).add(self._clock() - began_at)
        return True

    async def _let_sleep(self, endpoint: Endpoint, model: str, on_demand: OnDemand) -> bool:
        """Returns whether the model sleeps; False if requests need it, or another agent lets an endpoint sleep."""
        within_s = DRAIN_S + on_demand.timeout_s + SETTLE_S
        # Two agents that choose different endpoints would put the last two to sleep.
        if not await self._hooks.claims.claim(EVERY_ENDPOINT, model, within_s, without_redis=False):
            return False
        self._endpoints.fall_asleep(endpoint, endpoint.reported.falls_asleep | {model})
        try:
            ended = await self._until(lambda: not endpoint.view.in_flight or self._is_awaited(model), DRAIN_S)
            if not ended or self._is_awaited(model):
                return False
            await self._hooks.run(Action.SLEEP, model, endpoint, on_demand)
            endpoint.probe_now.set()
            if not await self._until(lambda: model not in _loaded(endpoint), SETTLE_S):
                raise HookFailed(f"still loaded {SETTLE_S:g} s after the hook answered")
            return True
        finally:
            self._endpoints.fall_asleep(endpoint, endpoint.reported.falls_asleep - {model})

    def _is_awaited(self, model: str) -> bool:
        return self._queue.waiting(model) > 0

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


def _loaded(endpoint: Endpoint) -> tuple[str, ...]:
    return endpoint.loaded_models if endpoint.health.ready else ()
