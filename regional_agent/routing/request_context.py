"""One request while it is on its way: its facts, and what has been tried for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.policy.policy import Policy
from penstock.policy.residency import Mask, RequestFacts
from penstock.routing.placement import WorkEstimate
from penstock.routing.reasons import Reason
from penstock.routing.region_selection import NOTHING_TRIED
from penstock.wire.route_context import RouteContext

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
