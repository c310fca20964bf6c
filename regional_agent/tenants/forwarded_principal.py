"""The principal of a forwarded request, as this region knows it: the origin has identified it by the key.

A key or a tenant that this region does not know is accepted, since the origin may have a newer state; one that this
region knows to be revoked, removed or suspended is not.
"""

from __future__ import annotations

from typing import Final

from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.routing.reasons import Reason, Refusal
from penstock.tenancy.permissions import restrictions_of
from penstock.wire.route_context import RouteContext
from regional_agent.requests.tenant_authentication import REVOKED
from regional_agent.tenants.principal import Principal, principal_under
from regional_agent.tenants.tenant_index import TenantIndex

MAX_CACHED: Final = 4096
"""Maximum number of cached principals; the oldest is evicted first."""


class ForwardedPrincipals:
    """Finds the principals of forwarded requests, and caches them while the policy and the tenant are as they were."""

    def __init__(self, index: TenantIndex) -> None:
        """`index` has the tenants that the API created."""
        self._index = index
        self._policy: Policy | None = None
        self._cached: dict[tuple[str, str, str], Principal] = {}

    def find(self, policy: Policy, context: RouteContext) -> Principal | Refusal:
        """Return the principal of a forwarded request under `policy`, or the refusal of its key or tenant."""
        if policy is not self._policy:
            self._policy = policy
            self._cached.clear()
        index, cached, key = self._index, self._cached, (context.tenant, context.data_class, context.key_id)
        principal = cached.get(key)
        if principal is not None and (principal.version == index.version or index.confirms(principal)):
            return principal
        cached.pop(key, None)
        found = self._look_up(policy, context)
        if isinstance(found, Principal):
            found.version = index.version
            if len(cached) >= MAX_CACHED:
                del cached[next(iter(cached))]
            cached[key] = found
        return found

    def _look_up(self, policy: Policy, context: RouteContext) -> Principal | Refusal:
        index, name = self._index, context.tenant
        tenant = policy.tenants.get(name)
        if tenant is not None:
            return Principal(tenant, context.key_id, models=restrictions_of(policy, tenant))
        found = index.find_id(context.key_id)
        if index.is_withdrawn(context.key_id) or (found is not None and found.key.revoked_at is not None):
            return REVOKED
        record = found.tenant if found is not None and found.tenant.name == name else index.find_tenant(name)
        known = None if record is None else principal_under(policy, record)
        if isinstance(known, Refusal) and known.reason is Reason.TENANT_SUSPENDED:
            return known
        principal = known if isinstance(known, Principal) else Principal(Tenant(name, context.data_class))
        principal.key = context.key_id if found is None else found.key.id
        return principal
