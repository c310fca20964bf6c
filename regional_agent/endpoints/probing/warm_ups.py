"""Sends synthetic requests to endpoints that have just loaded a model, before the model receives clients' requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from math import inf
from typing import Final

import structlog

from penstock.health.endpoint_health import EndpointState
from penstock.health.warm_up_weight import STILL_WARM_S
from penstock.policy.kinds.warm_up import WarmUp
from regional_agent.background_tasks import cancel
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.routing.request_rewrite import NO_REWRITE
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

START_S: Final = 30.0
"""Time (s) after the start of the agent in which models count as warm that were loaded when it first read them: other
agents have used them."""

RETRY_S: Final = 1.0
"""Time (s) from a failed request to the next."""

MAX_ANSWER_BYTES: Final = 4 << 20

_JSON: Final = (b"content-type", b"application/json")

log = structlog.get_logger()


class WarmUps:
    """The warm-ups of the endpoints of one agent."""

    def __init__(self, connections: UpstreamPool, clock: Callable[[], float], on_warm: Callable[[], None]) -> None:
        """`on_warm` is called when an endpoint has become warm, or cold."""
        self._connections = connections
        self._clock = clock
        self._on_warm = on_warm
        self._started_at = clock()
        self._seen_at: dict[tuple[Endpoint, str], float] = {}
        """Time (s) at which an endpoint last had a model loaded."""
        self._lacked: set[tuple[Endpoint, str]] = set()
        """Endpoints that this agent has seen without a model."""
        self._tasks: dict[tuple[Endpoint, str], asyncio.Task[None]] = {}

    def check(self, endpoints: Iterable[Endpoint]) -> None:
        """Begin the warm-ups that are due. Called periodically."""
        now = self._clock()
        warming = [endpoint for endpoint in endpoints if endpoint.reported.warm_ups]
        if not warming and not self._seen_at:
            return
        kept = {(endpoint, model) for endpoint in warming for model in endpoint.reported.warm_ups}
        self._seen_at = {key: at for key, at in self._seen_at.items() if key in kept}
        self._lacked &= kept
        for endpoint, model in kept:
            self._check(endpoint, model, now)

    async def stop(self) -> None:
        """Stop all warm-ups."""
        await cancel(list(self._tasks.values()))

    def _check(self, endpoint: Endpoint, model: str, now: float) -> None:
        reported, key = endpoint.reported, (endpoint, model)
        if _has(endpoint, model):
            self._seen_at[key] = now
            if model in reported.warm or key in self._tasks:
                return
            if key not in self._lacked and now - self._started_at < START_S:
                self._set_warm(endpoint, model, "")
                return
            task = asyncio.create_task(self._warm(endpoint, model), name=f"warm-up {endpoint.name}")
            self._tasks[key] = task
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        elif _lacks(endpoint):
            self._lacked.add(key)
            if model in reported.warm and now - self._seen_at.get(key, -inf) > STILL_WARM_S:
                reported.warm -= {model}
                self._on_warm()

    async def _warm(self, endpoint: Endpoint, model: str) -> None:
        warm_up, began_at = endpoint.reported.warm_ups[model], self._clock()
        answered, problem = 0, ""
        while answered < warm_up.requests and _has(endpoint, model):
            left_s = began_at + warm_up.timeout_s - self._clock()
            if left_s <= 0.0:
                break
            count = min(warm_up.concurrent, warm_up.requests - answered)
            problems = await asyncio.gather(*(self._ask(endpoint, model, warm_up, left_s) for _ in range(count)))
            answered += problems.count("")
            problem = max(problems)
            if problem:
                await asyncio.sleep(RETRY_S)
        if not _has(endpoint, model):
            return
        if answered < warm_up.requests:
            problem = f"warm-up of {model}: {answered} of {warm_up.requests} requests answered; {problem}"
            log.warning(
                "endpoint receives requests without a complete warm-up", endpoint=endpoint.name, problem=problem
            )
        else:
            took_s = round(self._clock() - began_at, 3)
            log.info("endpoint warmed up", endpoint=endpoint.name, model=model, requests=answered, took_s=took_s)
            problem = ""
        self._set_warm(endpoint, model, problem)

    async def _ask(self, endpoint: Endpoint, model: str, warm_up: WarmUp, timeout_s: float) -> str:
        """Send one request; returns why it was not answered with 2xx, empty if it was."""
        rewrite = endpoint.rewrite or NO_REWRITE
        body = warm_up.body_for(rewrite.engine_name(model))
        request = FetchRequest(rewrite.target(warm_up.path), (*rewrite.headers, _JSON), body)
        try:
            answer = await fetch(
                self._connections, endpoint.address, request, timeout_s=timeout_s, limit_bytes=MAX_ANSWER_BYTES
            )
        except UpstreamError as error:
            return f"POST {warm_up.path}: {error}"
        return "" if 200 <= answer.status < 300 else f"POST {warm_up.path} answers {answer.status}"

    def _set_warm(self, endpoint: Endpoint, model: str, problem: str) -> None:
        endpoint.reported.warm |= {model}
        endpoint.reported.warm_problem = problem
        self._on_warm()


def _has(endpoint: Endpoint, model: str) -> bool:
    return endpoint.health.ready and model in endpoint.loaded_models


def _lacks(endpoint: Endpoint) -> bool:
    """Whether a model that the endpoint does not have is not loaded, and not only unread."""
    health = endpoint.health
    return health.state is EndpointState.DOWN or (health.ready and endpoint.reported.listed_at > -inf)
