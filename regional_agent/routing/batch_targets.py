"""Selects the targets of batch requests: the cheapest permitted region with idle slots."""

from __future__ import annotations

import time
from collections.abc import Iterable
from random import Random
from typing import Final

from msgspec.structs import replace

from penstock.fleet.counts.message_bytes import BytesTally
from penstock.policy.policy import Policy
from penstock.routing.batch_price import BatchWork, batch_work
from penstock.routing.decision import decide
from penstock.routing.reasons import Reason, Refusal
from penstock.routing.region_selection import RegionRequest, RegionView
from regional_agent.config.active_config import ActiveConfig
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.forwarded_attempt import ForwardedAttempt
from regional_agent.routing.local_targets import LocalTargets
from regional_agent.routing.peer_targets import PeerTargets

_TOO_LONG: Final = Reason.CONTEXT_LENGTH_EXCEEDED
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


class BatchTargets:
    """The targets of requests below all priorities, in all regions."""

    def __init__(
        self, config: ActiveConfig, local: LocalTargets, peers: PeerTargets, rng: Random, sizes: BytesTally
    ) -> None:
        """Create the targets of one agent; arguments as of `Router`."""
        self.region = local.region
        self._config = config
        self._local = local
        self._peers = peers
        self._rng = rng
        self.sizes = sizes

    def views(self, regions: Iterable[str], model: str, now: float) -> dict[str, RegionView]:
        """Return the views of `regions`, this region included, for one model."""
        view = self._peers.view
        views = {region: view(region, model, now) for region in regions}
        views[self.region] = self._local.view(model)
        return views

    def select(self, context: RequestContext, now: float, *, in_turn: bool) -> Attempt | Refusal:
        """Select the cheapest region with idle slots; if its agent refuses, exclude it and select again."""
        policy, permitted = self._config.policy, context.residency.permitted
        assert policy is not None
        local, model, priced_at = self._local, context.model, time.time()
        waits = not in_turn and local.queue.must_queue(context)
        work = self.work(policy, model, context.request.length or context.request.received_bytes)
        while True:
            views = self.views(permitted.regions, model, now)
            if waits:
                # Batch requests that wait here are before this one, in all regions.
                views = {region: replace(view, batch_room=0) for region, view in views.items()}
            else:
                views[self.region] = replace(views[self.region], batch_room=local.batch_room(context))
            request = RegionRequest(
                self.region,
                model,
                permitted,
                context.tried_regions,
                batch_at=priced_at,
                max_use=context.max_use,
                batch_work=work,
            )
            decision = decide(policy, self._config.plan, context.residency, request, views, self._rng)
            if isinstance(decision, Refusal):
                return self._local.too_long_for_all(context, views) or decision
            where = decision.choice
            if where.region == self.region:
                target: Attempt | Reason = local.place(context, where.why, now)
            else:
                target = self._peers.forward(context, where)
            if isinstance(target, (LocalAttempt, ForwardedAttempt)):
                return target
            context.tried(where.region, target)
            if target is _TOO_LONG:
                self._local.exclude_shorter(context, views)

    def work(self, policy: Policy, model: str, body_bytes: int | None = None) -> BatchWork | None:
        """Return what a batch request uses, as far as it was measured here; None if the policy lacks the model.

        Args:
            body_bytes: size (bytes) of the body; None for that of a mean request.
        """
        found, pool = policy.models.get(model), self._local.endpoints.pools[model]
        if found is None:
            return None
        work = batch_work(found, pool.service_s, pool.slots / pool.ready if pool.ready else 0.0)
        sizes = self.sizes.of(found)
        request_bytes = sizes.request_bytes if body_bytes is None else body_bytes
        return replace(work, request_bytes=request_bytes, response_bytes=sizes.response_bytes)
