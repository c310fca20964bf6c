"""What earlier policies contained and the policy in force does not, and what is revoked: API keys, models and routes.

The record applies to requests that another region's agent has identified and forwarded. What was in no policy of this
agent is not withdrawn, since the other region may have a newer policy.
"""

from __future__ import annotations

from typing import Final

from penstock.policy.policy import Policy
from penstock.routes.route import Route
from penstock.routing.reasons import Reason, Refusal
from penstock.wire.route_context import RouteContext
from regional_agent.requests.tenant_authentication import KEY_ID_CHARS

MAX_WITHDRAWN: Final = 65_536
"""Maximum number of withdrawn keys, models and routes that are kept; the oldest are evicted first."""

Item = tuple[str, ...]
"""The kind of an item, and its name."""

_KEY: Final = "key"
_MODEL: Final = "model"
_ROUTE: Final = "route"


class Withdrawn:
    """The keys, models and routes that were withdrawn since the start of the agent and not offered again."""

    __slots__ = ("_offered", "_revoked_ids", "_withdrawn")

    def __init__(self) -> None:
        """Create an empty record: without a policy, nothing is withdrawn."""
        self._offered: frozenset[Item] = frozenset()
        self._withdrawn: dict[Item, None] = {}
        self._revoked_ids: frozenset[str] = frozenset()

    def use(self, policy: Policy) -> None:
        """Replace the policy in force, and the keys that are revoked under it."""
        self._revoked_ids = policy.revoked_ids
        before, self._offered = self._offered, _offered_by(policy)
        for item in before - self._offered:
            self._withdrawn[item] = None
        for item in self._offered & self._withdrawn.keys():
            del self._withdrawn[item]
        while len(self._withdrawn) > MAX_WITHDRAWN:
            del self._withdrawn[next(iter(self._withdrawn))]

    def refuse(self, route_context: RouteContext) -> Refusal | None:
        """Returns the refusal of a forwarded request whose key is withdrawn or revoked; no key means anonymous
        access."""
        if (
            route_context.key_id in self._revoked_ids
            or (_KEY, route_context.key_id, route_context.tenant) in self._withdrawn
        ):
            return Refusal(Reason.INVALID_API_KEY, "the API key was revoked")
        return None

    def refuse_start(self, model: str, route: Route | None) -> Refusal | None:
        """Returns the refusal of a forwarded request that has no attempt yet, if its model or route is withdrawn."""
        if (_MODEL, model) in self._withdrawn:
            return Refusal(Reason.MODEL_NOT_FOUND, f"no model named {model!r} is served here")
        if route is not None and (_ROUTE, route.name) in self._withdrawn:
            return Refusal(Reason.NOT_FOUND, f"the policy in force does not offer the route {route.name}")
        return None


def _offered_by(policy: Policy) -> frozenset[Item]:
    offered: set[Item] = {
        (_KEY, digest[:KEY_ID_CHARS], tenant.name)
        for tenant in policy.tenants.values()
        for digest in tenant.key_digests
    }
    if policy.anonymous_tenant:
        offered.add((_KEY, "", policy.anonymous_tenant))
    offered.update((_MODEL, name) for name in policy.models)
    offered.update((_ROUTE, route.name) for route in policy.routes if route.offered)
    return frozenset(offered)
