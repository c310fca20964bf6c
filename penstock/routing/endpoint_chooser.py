"""Chooses the endpoint of each request at one agent, and learns from the outcomes.

The choice itself is `choose_endpoint`. This class adds the agent's state: the prefixes, sessions and models
of each endpoint, the lengths of answers, and the speed of each endpoint.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from random import Random
from typing import Final

from penstock.answers.token_counts import Usage
from penstock.cost.cost_estimate import CostEstimator, actual_work
from penstock.cost.request_properties import CostInputs
from penstock.policy.kinds.models import CostUnit, Model
from penstock.pools.placement import Member, Placement, WorkEstimate
from penstock.pools.pool_accounting import PoolAccount
from penstock.routing.affinity import (
    BLOCK_BYTES,
    EVICTION_PRESSURE,
    MODEL_GAP_S,
    NOTHING,
    AffinityHint,
    AffinityIndex,
    session_key,
)
from penstock.routing.endpoint_selection import (
    LONG_PREFILL_S,
    LONG_PREFILL_US,
    NOTHING_HELD,
    EndpointView,
    HeldParts,
    choose_endpoint,
    consider,
    is_stale,
)
from penstock.routing.reasons import ConsideredEndpoint, Reason

_TOKEN: Final = CostUnit.TOKEN
"""In Python 3.11, to read a member off its class is a function call."""


class EndpointChooser:
    """Endpoint choice at one agent, with the state that affinity and estimates need."""

    def __init__(self, rng: Random) -> None:
        """Create a chooser without state; `rng` breaks ties."""
        self.expectations = CostEstimator()
        self.affinity = AffinityIndex()
        self._rng = rng

    def choose(
        self,
        pool: PoolAccount[Member],
        estimate: WorkEstimate,
        tried: Container[str],
        view_age_s: float,
        now: float,
        *,
        leaves_one: bool = False,
    ) -> tuple[Member, float] | Reason:
        """The endpoint of a request and the prefill (s, reference) that its cache spares; a reason if none is chosen.

        Args:
            tried: names of endpoints that did not start this request.
            view_age_s: age of the oldest count in the pool, in seconds.
            now: monotonic, in seconds.
            leaves_one: a long prompt leaves one endpoint of several without long prompts, for other tenants.
        """
        remembers = pool.shares_endpoints or estimate.session is not None or len(estimate.prefix) > 0
        held = NOTHING_HELD
        if remembers:
            held = self._held(pool, estimate, self.affinity.held(estimate.prefix, estimate.session, now), now)
        prefilling: frozenset[str] = frozenset()
        if is_long(estimate):
            prefilling = _prefilling(pool.views, estimate.work.prefill_s, held.spared_s, leaves_one=leaves_one)
            if prefilling:
                tried = prefilling.union([view.name for view in pool.views if view.name in tried])
        choice = choose_endpoint(
            pool.candidates,
            self._rng,
            work=estimate.work,
            tried=tried,
            held=held,
            stale=is_stale(view_age_s, pool.service_s),
        )
        index = choice.index
        if index is None:
            full = any(rejection.reason is Reason.ENDPOINT_FULL for rejection in choice.rejected)
            return Reason.SATURATED if full or prefilling else Reason.MODEL_NOT_READY
        endpoint = pool.endpoints[index]
        if remembers:
            self.affinity.sent(endpoint.name, estimate.prefix, estimate.session, estimate.model, now)
        return endpoint, held.spared_s.get(index, 0.0) if remembers else 0.0

    def consider(
        self, pool: PoolAccount[Member], model: Model, tenant: str, session: str, now: float
    ) -> tuple[ConsideredEndpoint, ...]:
        """The candidates that `choose` compares for a minimal prompt and an expected answer length. Changes no state.

        Args:
            session: the conversation of the request; empty if it has none.
        """
        ask = CostInputs(0)
        work = self.expectations.estimate(model.cost, tenant, model.name, ask)
        estimate = WorkEstimate(tenant, model.name, model.cost, ask, work, streaming=False)
        estimate.session = session_key(f"{tenant}/{model.name}", session.encode()) if session else None
        held = self._held(pool, estimate, self.affinity.held(estimate.prefix, estimate.session, now), now)
        return consider(pool.candidates, estimate.work, held=held)

    def spared_s(self, pool: PoolAccount[Member], estimate: WorkEstimate, now: float) -> float:
        """The prefill (s, reference) that the caches of a pool spare a request at most, at `now` (s, monotonic)."""
        if not estimate.prefix:
            return 0.0
        held = self._held(pool, estimate, self.affinity.held(estimate.prefix, None, now), now)
        return max(held.spared_s.values(), default=0.0)

    def block_s(self, estimate: WorkEstimate) -> float:
        """The prefill (s, reference) of one block of a prompt."""
        return BLOCK_BYTES * self.expectations.tokens_per_byte(estimate.model) * estimate.cost.input_unit_s

    def learn_first_byte(self, placement: Placement[Member], now: float) -> None:
        """Update the prefill speed from the first byte of a streamed response."""
        learner = placement.endpoint.learner
        if placement.ahead_s > 0.0 and not placement.queued and learner.is_first_byte_due(now):
            learner.saw_first_byte(placement.ahead_s, now - placement.since, now)

    def learn_response(self, placement: Placement[Member], now: float, usage: Usage | None) -> None:
        """Update answer length and decode speed from a complete response.

        Args:
            usage: the usage that the engine reported; None without a report.
        """
        estimate, learner = placement.estimate, placement.endpoint.learner
        if estimate.cost.unit is not _TOKEN:
            usage = None
        length_due = estimate.cost.unit is _TOKEN and self.expectations.is_due(estimate.tenant, estimate.model, now)
        speed_due = not placement.queued and learner.is_due(now)
        if not length_due and not speed_due:
            return
        if usage is not None and length_due:
            self.expectations.observe(estimate.tenant, estimate.model, estimate.ask, usage, now)
        if not speed_due:
            return
        begun_at = placement.first_byte_at if estimate.streaming else min(now, placement.prefill_over_at)
        if begun_at is not None:
            decode_s = actual_work(estimate.cost, usage).decode_s if usage is not None else estimate.work.decode_s
            learner.saw_end(decode_s, now - begun_at, placement.mean_streams(), now)

    def learn_length(self, estimate: WorkEstimate, now: float, usage: Usage) -> None:
        """Update answer length from the usage of a response that several endpoints generated."""
        if estimate.cost.unit is _TOKEN and self.expectations.is_due(estimate.tenant, estimate.model, now):
            self.expectations.observe(estimate.tenant, estimate.model, estimate.ask, usage, now)

    def _held(self, pool: PoolAccount[Member], estimate: WorkEstimate, known: AffinityHint, now: float) -> HeldParts:
        """What the endpoints of a pool hold of a request."""
        if known is not NOTHING:
            per_block_s = self.block_s(estimate)
            held = {
                index: blocks * per_block_s
                for name, blocks in known.blocks.items()
                if (index := pool.positions.get(name)) is not None and pool.views[index].pressure < EVICTION_PRESSURE
            }
            return HeldParts(held, known.gap_s)
        if not pool.shares_endpoints:
            return NOTHING_HELD
        running = self.affinity.running(estimate.model, now)
        indexes = [index for name in running if (index := pool.positions.get(name)) is not None]
        spared_s = {index: 0.0 for index in indexes if pool.views[index].pressure < EVICTION_PRESSURE}
        return HeldParts(spared_s, MODEL_GAP_S)


def is_long(estimate: WorkEstimate) -> bool:
    """Whether the prompt of a request is long.

    An endpoint prefills one long prompt at a time: engines process prompts in order of arrival, so that a short prompt
    would wait for all of them. Further long prompts wait in the admission queue, where short prompts pass them. While
    several tenants use a model, one endpoint of several has no long prompts.
    """
    return estimate.work.prefill_s >= LONG_PREFILL_S


def _prefilling(
    views: Sequence[EndpointView], prefill_s: float, spared_s: Mapping[int, float], *, leaves_one: bool
) -> frozenset[str]:
    """The endpoints that take no further long prompt now.

    Args:
        prefill_s: prefill (s, reference) of the request.
        spared_s: prefill (s, reference) that the caches of endpoints spare it, by index.
        leaves_one: whether one ready endpoint of several stays without long prompts.
    """
    busy = [view.name for view in views if view.prefill_us >= LONG_PREFILL_US]
    if leaves_one:
        ready = [view.name for view in views if view.ready and not view.draining]
        idle = [name for name in ready if name not in busy]
        if len(ready) > 1 and len(idle) <= 1:
            busy += idle
    cached = [views[index].name for index, spared in spared_s.items() if prefill_s - spared < LONG_PREFILL_S]
    return frozenset([name for name in busy if name not in cached])
