"""The authenticated sender of a request: its tenant, and the key or token by which it was identified."""

from __future__ import annotations

from math import inf
from typing import Final

from penstock.policy.kinds.budgets import Budget
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.routing.reasons import Refusal
from penstock.tenancy.created_tenants.created_tenant import tenant_under
from penstock.tenancy.permissions import Patterns, permits_name, restrictions_of
from penstock.tenancy.tenant_record import TenantRecord

_NO_BUDGETS: Final[tuple[Budget, ...]] = ()


class Principal:
    """A tenant, and the API key of a request. One object is shared by all requests with the key.

    Args:
        tenant: the tenant, under the policy in force.
        key: identifier of the key for logs and the ledger; empty without a key.
        expires_at: Unix time (s) from which requests are refused; inf: never.
        version: the version of the tenants' index (`TenantIndex`) at which the key was valid.
        models: the models and adapters that the key may use, see `restrictions_of`.
    """

    def __init__(
        self, tenant: Tenant, key: str = "", expires_at: float = inf, version: int = 0, models: Patterns = ()
    ) -> None:
        self.tenant = tenant
        self.key = key
        self.expires_at = expires_at
        self.version = version
        self.budgets = _NO_BUDGETS
        """Limits of the key, besides those of its tenant."""
        self.budget_key = key
        """Identifier under which the use of `budgets` counts."""
        self.models = models
        """The models and adapters that the key may use: names that match a pattern of each tuple."""
        self.routes = tenant.routes
        """Patterns of the routes that the key may use; None: all."""
        self.source = ""
        """Name in the tenants' index of the issuer's key that has signed the token; empty for an API key."""
        self.widest_data_class = ""
        """Data class of the tenant, if a token may have restricted it; empty otherwise."""
        self._routes: dict[str, bool] = {}

    def permits_route(self, name: str) -> bool:
        """Whether the key may use a route of the policy. Called only if `routes` is not None."""
        found = self._routes.get(name)
        if found is None:
            found = self._routes[name] = self.routes is None or permits_name((self.routes,), name)
        return found


def principal_under(policy: Policy, record: TenantRecord) -> Principal | Refusal:
    """The principal of a tenant that the API created, by the rules of its tier, or the refusal of its requests."""
    tenant = tenant_under(policy, record)
    return tenant if isinstance(tenant, Refusal) else Principal(tenant, models=restrictions_of(policy, tenant))


UNIDENTIFIED: Final = Principal(Tenant("", ""))
"""The principal of a request context before its sender is known."""
