"""One request while it is on its way: its facts, what has been tried for it, and where one attempt of it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.health.outlier_ejection import Outcome
from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts
from penstock.routing.placement import Placement, WorkEstimate
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import NOTHING_TRIED
from penstock.wire.route_context import RouteContext
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.upstream.address import Address

if TYPE_CHECKING:
    from regional_agent.http.messages import Request

NO_NAMES: frozenset[str] = frozenset()

_ENGINE_FAILED: Final = Reason.ENGINE_FAILED
"""In Python 3.11, to read a member off its class is a function call."""


class RequestContext:
    """One request's facts and what has been tried for it. Times are on the agent's monotonic clock."""

    __slots__ = (
        "admitted",
        "asked_for",
        "attempts",
        "broken",
        "busy_endpoints",
        "counted",
        "deadline_at",
        "estimate",
        "facts",
        "failed_because",
        "model",
        "policy",
        "priority",
        "received_at",
        "request",
        "request_id",
        "rests_until",
        "route_context",
        "traceparent",
        "tried_endpoints",
        "tried_regions",
    )

    def __init__(
        self,
        request: Request,
        request_id: str,
        traceparent: str,
        estimate: WorkEstimate,
        facts: RequestFacts,
        admitted: Mask,
        policy: Policy,
        now: float,
        timeout_s: float,
    ) -> None:
        self.request = request
        self.request_id = request_id
        self.traceparent = traceparent
        self.estimate = estimate
        """What it is to whoever runs it."""
        self.model = estimate.model
        self.asked_for = estimate.model
        """What the client named: `model`, or what that is a version of or stands in for."""
        self.facts = facts
        self.admitted = admitted
        self.policy = policy
        """The one that it was admitted under."""
        self.received_at = now
        self.deadline_at = now + timeout_s
        self.route_context: RouteContext | None = None
        """Set when another region's agent forwarded it here."""
        self.attempts = 0
        self.broken = 0
        """Engines that broke off after they were sent it."""
        self.priority = 0
        """Its tenant's: higher goes first where something must wait."""
        self.counted = False
        """It counts towards its tenant's quota here."""
        self.failed_because = _ENGINE_FAILED
        """Why the last attempt did not start."""
        self.rests_until = 0.0
        """Where it has to wait, it is offered to nobody before."""
        self.busy_endpoints = NO_NAMES
        """Those that answered that they are full: what is left undone is saturation, not absence."""
        self.tried_endpoints = NO_NAMES
        self.tried_regions = NOTHING_TRIED
        """Regions that did not start it, and why. Most requests try one thing only, so there is nothing to add to."""

    def tried(self, region: str, why: Reason) -> None:
        """A region did not start it."""
        self.tried_regions = {**self.tried_regions, region: why}

    def forget_tries(self) -> None:
        """Begin anew: it asks for something else now."""
        self.attempts = 0
        self.rests_until = 0.0
        self.tried_regions = NOTHING_TRIED
        self.tried_endpoints = self.busy_endpoints = NO_NAMES


class LocalAttempt(Placement[Endpoint]):
    """One attempt at a request on an endpoint of this region."""

    __slots__ = ("address", "kind", "outcome", "region")

    def __init__(
        self, endpoint: Endpoint, estimate: WorkEstimate, spared_s: float, now: float, region: str, kind: str
    ) -> None:
        """Create an attempt whose reservation is not counted yet.

        Args:
            spared_s: prefill (s, reference) that the endpoint's cache spares.
            now: by the agent's clock, in seconds.
            region: this one.
            kind: why this region serves.
        """
        super().__init__(endpoint, estimate, spared_s, now)
        self.address = endpoint.address
        self.region = region
        self.kind = kind
        self.outcome: Outcome | None = None
        """What the attempt shows of the endpoint's health, as soon as it shows something."""


class Forward:
    """One attempt at a request in another region."""

    __slots__ = ("address", "kind", "region", "route_header")

    endpoint = None
    """The peer chooses it."""

    def __init__(self, region: str, address: Address, kind: str, route_header: bytes) -> None:
        self.region = region
        """That serves it."""
        self.address = address
        """An agent there."""
        self.kind = kind
        self.route_header = route_header
        """The signed facts of the request."""


Target = LocalAttempt | Forward
"""Where one attempt goes."""
