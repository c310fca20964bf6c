"""Forwards requests to agents of other regions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from penstock.planning.plan import ArcReason
from penstock.retries.retry_rules import MAX_FAILED
from penstock.routing.prefixes.prefix_sketch import Held
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import RegionChoice, RegionView
from penstock.wire.route_context import RouteContext, content_digest, seal
from regional_agent.config.active_config import ActiveConfig
from regional_agent.peers.peer_prober import PeerProber
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.tenant_authentication import credential_of, key_id
from regional_agent.routing.forwarded_attempt import ForwardedAttempt

_BATCH: Final = ArcReason.BATCH
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""


class PeerTargets:
    """The agents of other regions as targets."""

    def __init__(self, region: str, config: ActiveConfig, peers: PeerProber, clock: Callable[[], float]) -> None:
        """Create the targets of an agent of `region`.

        Args:
            config: the policy and plan in force.
            peers: health, waits and spill credits of the other regions.
            clock: monotonic, in seconds.
        """
        self._region = region
        self._config = config
        self._peers = peers
        self._clock = clock
        self.view: Final[Callable[[str, str, float], RegionView]] = peers.view
        """Returns the view of another region for one model at a time (s)."""
        self.is_awaited: Final[Callable[[str], bool]] = peers.is_awaited
        """Whether another region may answer its first probe soon."""
        self.held: Final[Callable[[str, Sequence[int]], Held]] = peers.held
        """Returns what the caches of another region hold of a prompt, given by the keys of its leading blocks."""

    def forward(
        self, context: RequestContext, where: RegionChoice, *, is_next: bool = False
    ) -> ForwardedAttempt | Reason:
        """Return a target in another region, with its signed route context. Uses a credit if required.

        Args:
            is_next: another region receives the request first, and engines may fail it there.
        """
        address = self._peers.address(where.region)
        peer_keys = None if address is None else self._peers.peer_keys(where.region, address)
        if address is None or peer_keys is None:
            return Reason.UNREACHABLE
        if is_next:
            pass  # `begin` spends the credit, if the request is sent
        elif where.why is _BATCH:
            self._peers.spend_batch(where.region, context.model)
        elif where.spends_credit:
            self._peers.spend(where.region, context.model)
        elif where.uses_burst:
            self._peers.spend_burst(where.region, context.model)
        request, wall, now = context.request, time.time(), self._clock()
        route_context = RouteContext(
            request_id=context.request_id,
            origin=self._region,
            server=where.region,
            tenant=context.facts.tenant,
            data_class=context.facts.data_class,
            location=context.facts.location,
            model=context.model,
            residency=tuple(sorted(context.residency.permitted.regions)),
            policy_digest=self._config.policy_digest,
            issued_at=wall,
            deadline_at=wall + context.deadline_at - now,
            queue_s=max(0.0, context.received_at + context.max_wait_s - now),
            traceparent=context.traceparent,
            traced=context.trace is not None,
            key_id=key_id(credential_of(request)),
            content=content_digest(request.method, request.target, request.body),
            body_bytes=request.length,
            extends_text=context.extends_text,
            priority=context.priority,
            weight=context.weight,
            max_use=context.max_use,
            preemptions=context.preemptions,
            failed_engines=max(context.broken + context.failed_elsewhere, (MAX_FAILED - 1) * is_next),
            may_end_engines=context.may_end_engines,
            for_burst=where.uses_burst,
        )
        sealed = seal(route_context, peer_keys).encode()
        attempt = ForwardedAttempt(where.region, address, where.why, sealed, self._peers)
        attempt.owes_credit = is_next and where.spends_credit
        return attempt
