"""The batch requests that run at endpoints of this region for this agent, and their preemption.

The agent ends a request by closing its connection to the engine, so policy permits this only for models whose engines
then stop computing (`preempt_batch` of `queueing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from penstock.accounts.outcome_rules import Outcome
from penstock.admission.batch_preemption import (
    MAX_PREEMPTIONS,
    AgentBatch,
    RunningRequest,
    first_to_end,
    preemptions_of,
)
from penstock.admission.region_queues import RegionQueues
from penstock.admission.retry_after import MIN_RETRY_S
from penstock.retries.retry_rules import RetryReason
from penstock.routing.reasons import Reason, Refusal

if TYPE_CHECKING:
    from regional_agent.endpoints.endpoint_set import EndpointSet
    from regional_agent.requests.request_context import RequestContext
    from regional_agent.routing.attempt import LocalAttempt
    from regional_agent.shared_load.shared_load import SharedLoad


MAX_REMEMBERED: Final = 16_384
"""Maximum number of requests whose preemptions are remembered beyond a refusal."""


class PreemptibleRequest(Protocol):
    """A batch request in progress."""

    context: RequestContext

    @property
    def may_be_preempted(self) -> bool:
        """Whether no byte of the response has arrived, and the request can be sent again."""

    def wait_again(self, why: RetryReason) -> None:
        """End the request at its engine; it waits again for an idle slot."""

    def end(self, refusal: Refusal, outcome: Outcome | None = None) -> None:
        """Refuse the request."""


class RunningBatchRequests:
    """The running batch requests of one agent."""

    def __init__(
        self,
        endpoints: EndpointSet,
        shared_load: SharedLoad,
        queues: RegionQueues[Any],
        on_preempted: Callable[[], None] = lambda: None,
    ) -> None:
        """Start without requests.

        Args:
            queues: what waits in the region.
            on_preempted: called for each request that is preempted.
        """
        self._queues = queues
        self._endpoints = endpoints
        self._shared_load = shared_load
        self._on_preempted = on_preempted
        self._running: dict[LocalAttempt, PreemptibleRequest] = {}
        self._preempted: dict[tuple[str, str], int] = {}
        """Preemptions by tenant and request identifier, the oldest first: a job sends a refused request again."""
        shared_load.preemptible = self._by_endpoint

    def began(self, attempt: LocalAttempt, request: PreemptibleRequest) -> None:
        """Record that a request was sent to its endpoint, until the attempt is settled."""
        context = request.context
        context.preemptions = max(context.preemptions, self._preempted.get(_key(context), 0))
        self._running[attempt] = request
        attempt.on_settle = self._ended

    def _ended(self, attempt: LocalAttempt) -> None:
        self._running.pop(attempt, None)

    def preemptible(self, model: str, excluded: Container[str] = ()) -> int:
        """Return how many running batch requests of the region may end for requests for a model.

        Args:
            excluded: names of endpoints that cannot serve these.
        """
        elsewhere = self._shared_load.remote_batch
        if not self._running and not elsewhere:
            return 0
        return len(self._candidates(model, excluded)) + self._in_pool(model, elsewhere, excluded)

    def _candidates(self, model: str, excluded: Container[str] = ()) -> list[LocalAttempt]:
        names = self._endpoints.pools[model].positions
        return [
            attempt
            for attempt in self._running
            if attempt.endpoint_name in names and attempt.endpoint_name not in excluded and self._may_end(attempt)
        ]

    def _in_pool(self, model: str, by_endpoint: Mapping[str, int], excluded: Container[str] = ()) -> int:
        names = self._endpoints.pools[model].positions
        return sum(count for name, count in by_endpoint.items() if name in names and name not in excluded)

    def make_room(
        self, model: str, waiting: int, now: float, waits_s: float = 0.0, excluded: Container[str] = ()
    ) -> bool:
        """End as many requests as others need; see `batch_preemption`. Returns whether one has ended.

        Args:
            waiting: requests with a priority that wait for the model at this agent.
            waits_s: time (s) for which one of them that may be in no queue has waited; infinite if it cannot wait.
            excluded: names of endpoints that cannot serve them.
        """
        candidates = self._candidates(model, excluded) if self._running else []
        if not candidates:
            return False
        pool = self._endpoints.pools[model]
        own = self._shared_load.agent
        policy = self._running[candidates[0]].context.policy
        patience_s, patient = policy.preemption_patience_s(model, pool.service_s), waiting
        if patience_s > 0.0:
            patient = min(waiting, max(self._queues.patient(model, patience_s, now), int(waits_s >= patience_s)))
        agents = [AgentBatch(own, waiting, len(candidates), patient)]
        for other in self._shared_load.others():
            queue = other.waiting.get(model)
            preemptible = self._in_pool(model, other.batch)
            requests = 0 if queue is None else queue.requests
            # Another agent publishes how long the first of its requests has waited.
            has_waited = queue is not None and queue.waited_ms >= 1000.0 * patience_s
            agents.append(AgentBatch(other.agent, requests, preemptible, requests if has_waited else 0))
        preemptions = preemptions_of(own, agents, pool.slots - pool.in_flight)
        running = [RunningRequest(attempt.since, number) for number, attempt in enumerate(candidates)]
        ends = first_to_end(running, preemptions, now, patience_s)
        for number in ends:
            self._preempt(candidates[number])
        return bool(ends)

    def _preempt(self, attempt: LocalAttempt) -> None:
        """End a request for another one: it waits again, or returns to the region that sent it."""
        request = self._running.pop(attempt)
        context = request.context
        self._on_preempted()
        self._remember(context)
        attempt.waive_charge()
        context.preempted()
        if context.route_context is None:
            request.wait_again(RetryReason.PREEMPTED)
        else:
            detail = "a request with a priority took the slot"
            request.end(Refusal(Reason.NO_IDLE_SLOTS, detail, retry_after_s=MIN_RETRY_S), Outcome.DEFERRED)

    def _remember(self, context: RequestContext) -> None:
        key = _key(context)
        self._preempted.pop(key, None)
        self._preempted[key] = context.preemptions + 1
        if len(self._preempted) > MAX_REMEMBERED:
            del self._preempted[next(iter(self._preempted))]

    def _by_endpoint(self) -> dict[str, int]:
        """The requests that may be preempted, by endpoint, for the other agents of the region."""
        return dict(Counter(attempt.endpoint_name for attempt in self._running if self._may_end(attempt)))

    def _may_end(self, attempt: LocalAttempt) -> bool:
        request = self._running[attempt]
        context = request.context
        if context.preemptions >= MAX_PREEMPTIONS or not context.policy.preempts_batch(context.model):
            return False
        return request.may_be_preempted


def _key(context: RequestContext) -> tuple[str, str]:
    return context.facts.tenant, context.request_id
