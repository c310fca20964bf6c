"""Evaluates open requests again after a change of policy or of their tenant: key, residency, and serving region.

Under one policy the result depends only on the key, the location, the model and the serving region. The expensive part,
the residency rules, is evaluated once for each tenant and location.
"""

from __future__ import annotations

import structlog

from penstock.policy.adapter_patterns import base_model_of
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts
from penstock.routing.reasons import Reason, Refusal
from penstock.wire.route_context import RouteContext, refuse_here
from regional_agent.config.active_config import ActiveConfig
from regional_agent.requests.authorization import MAX_CACHED_LOCATIONS, Authorization, refuse_route
from regional_agent.requests.request_context import RequestContext
from regional_agent.requests.tenant_authentication import REVOKED
from regional_agent.tenants.principal import Principal

log = structlog.get_logger()


class Reauthorization:
    """Evaluates the policy in force for requests that were authorized under an earlier one."""

    def __init__(self, region: str, config: ActiveConfig, authorization: Authorization) -> None:
        """Create the reauthorization of the open requests of an agent of `region`."""
        self._region = region
        self._config = config
        self._authorization = authorization
        self._policy: Policy | None = None
        """The policy under which `_forwarded` was evaluated."""
        self._forwarded: dict[RequestFacts, Refusal | None] = {}

    @property
    def policy(self) -> Policy | None:
        """The policy in force."""
        return self._config.policy

    @property
    def tenants_version(self) -> int:
        """Number that grows with each change of a tenant that the API created."""
        return self._config.tenants.version

    def is_current(self, context: RequestContext) -> bool:
        """Whether a request was authorized under the policy in force, and its tenant has not changed since."""
        return context.policy is self._config.policy and self._is_current(context.principal)

    def reauthorize(self, context: RequestContext, server: str = "") -> Refusal | None:
        """Authorize a request under the policy in force and the present state of its tenant; returns the refusal.

        A request that has an attempt may complete although its model or its route was removed from the policy, or its
        tenant may not use them any more; and every request may although its key has expired. A request that cannot be
        evaluated is refused: a defect must not leave a request open where residency may forbid it.

        Args:
            server: the region that serves the request; empty while the request has no attempt.
        """
        policy = self._config.policy
        if policy is None or (policy is context.policy and self._is_current(context.principal)):
            return None
        try:
            return self._reauthorize(context, server, policy)
        except Exception:
            log.exception("a policy cannot be evaluated for an open request", tenant=context.facts.tenant)
            return Refusal(Reason.RESIDENCY_DENIED, "the policy in force cannot be evaluated for this request")

    def refuse_model(self, context: RequestContext, model: str, server: str) -> Refusal | None:
        """Return why the client of an open request may not use a further model at the region `server`; None if it may.

        Args:
            model: the name of a model, of versions, or of an adapter.
        """
        policy = self._config.policy or context.policy
        verdict = self._authorization.mask_by_name(policy, model, context.principal, context.facts)
        if isinstance(verdict, Refusal):
            return verdict
        if server not in verdict.permitted.regions:
            return Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {server}", verdict.rejected)
        return None

    def _reauthorize(self, context: RequestContext, server: str, policy: Policy) -> Refusal | None:
        route_context = context.route_context
        if route_context is None:
            refusal = self._reauthorize_from_client(context, server, policy)
        else:
            refusal = self._reauthorize_forwarded(context, route_context, policy)
            if refusal is None and not server:
                withdrawn = self._authorization.withdrawn(policy)
                refusal = withdrawn.refuse_start(context.model, context.request.route)
        if refusal is None:
            context.policy = policy
        return refusal

    def _reauthorize_from_client(self, context: RequestContext, server: str, policy: Policy) -> Refusal | None:
        principal = self._principal_of(context, policy)
        if isinstance(principal, Refusal):
            return principal
        tenant, facts = principal.tenant, context.facts
        if tenant.name != facts.tenant:
            return REVOKED
        # A token can have narrowed the class of a stored sender; `stored_sender` has compared it with the tenant's.
        if context.has_credential and tenant.data_class != facts.data_class:
            facts = context.facts = RequestFacts(facts.tenant, tenant.data_class, facts.location)
        wider = self._authorization.refuse_wider(policy, principal, facts)
        if wider is not None:
            return wider
        route = context.request.route
        if not server and route is not None and not policy.route_table.has(route):
            return Refusal(Reason.NOT_FOUND, f"the policy in force does not offer the route {route.name}")
        if not server and principal.routes is not None:
            refusal = refuse_route(principal, context.request)
            if refusal is not None:
                return refusal
        authorization, adapter = self._authorization, context.estimate.adapter
        if adapter and not server and base_model_of(policy, adapter) != context.model:
            return Refusal(Reason.MODEL_NOT_FOUND, f"no model named {adapter!r} is served here")
        if server:
            verdict = authorization.residency(policy, facts)
        elif adapter:
            verdict = authorization.adapter_mask(policy, adapter, principal, facts)
        else:
            verdict = authorization.mask(policy, context.model, principal, facts)
        if isinstance(verdict, Refusal):
            return verdict
        if server and server not in verdict.permitted.regions:
            return Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {server}", verdict.rejected)
        context.permit(verdict)
        context.principal = principal
        return None

    def _principal_of(self, context: RequestContext, policy: Policy) -> Principal | Refusal:
        authorization, before = self._authorization, context.principal
        if context.has_credential:
            return authorization.principal_of(context.request, started=True)
        sender = authorization.stored_sender(policy, context.facts, before.key, before.models)
        return sender if isinstance(sender, Refusal) else sender.principal

    def _reauthorize_forwarded(self, context: RequestContext, route: RouteContext, policy: Policy) -> Refusal | None:
        principal = self._authorization.forwarded_principal(policy, route)
        if isinstance(principal, Refusal):
            return principal
        context.principal, stated, own = principal, context.facts, principal.tenant.data_class
        refusal = self._refuse_forwarded(stated, policy)
        if refusal is None and own != stated.data_class:
            refusal = self._refuse_forwarded(RequestFacts(stated.tenant, own, stated.location), policy)
        return refusal

    def _is_current(self, principal: Principal) -> bool:
        tenants = self._config.tenants
        return principal.version == tenants.version or tenants.confirms(principal)

    def _refuse_forwarded(self, facts: RequestFacts, policy: Policy) -> Refusal | None:
        """Why this region may not serve a forwarded request. Cached while the policy is in force."""
        forwarded = self._forwarded
        if policy is not self._policy or len(forwarded) >= MAX_CACHED_LOCATIONS:
            self._policy, forwarded = policy, {}
            self._forwarded = forwarded
        if facts not in forwarded:
            forwarded[facts] = refuse_here(policy, facts, self._region)
        return forwarded[facts]
