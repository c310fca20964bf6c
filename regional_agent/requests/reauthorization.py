"""Evaluates open requests again after a change of policy: their key, their residency, and their serving region.

Under one policy the result depends only on the key, the location, the model and the serving region. The expensive part,
the residency rules, is evaluated once for each tenant and location.
"""

from __future__ import annotations

from typing import Final

import structlog

from penstock.policy.adapter_patterns import base_model_of
from penstock.policy.model_versions import versions_of
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts
from penstock.routing.reasons import Reason, Refusal
from penstock.wire.route_context import refuse_here
from regional_agent.config.active_config import ActiveConfig
from regional_agent.requests.authorization import MAX_CACHED_LOCATIONS, Authorization
from regional_agent.requests.request_context import RequestContext

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

    def reauthorize(self, context: RequestContext, server: str = "") -> Refusal | None:
        """Authorize a request under the policy in force; returns the refusal if the policy no longer permits it.

        A request that has an attempt may complete although its model or its route was removed from the policy. A
        request that cannot be evaluated is refused: a defect must not leave a request open where residency may forbid
        it.

        Args:
            server: the region that serves the request; empty while the request has no attempt.
        """
        policy = self._config.policy
        if policy is None or policy is context.policy:
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
        versions = versions_of(policy, model)
        names = (
            [base_model_of(policy, model) or model] if versions is None else [each.model for each in versions.versions]
        )
        for name in names:
            verdict = self._authorization.mask(policy, name, context.facts)
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
            withdrawn = self._authorization.withdrawn(policy)
            refusal = withdrawn.refuse(route_context)
            if refusal is None and not server:
                refusal = withdrawn.refuse_start(context.model, context.request.route)
            if refusal is None:
                refusal = self._refuse_forwarded(context.facts, policy)
        if refusal is None:
            context.policy = policy
        return refusal

    def _reauthorize_from_client(self, context: RequestContext, server: str, policy: Policy) -> Refusal | None:
        tenant = self._authorization.tenant_of(context.request)
        if isinstance(tenant, Refusal):
            return tenant
        facts = context.facts
        if tenant.name != facts.tenant:
            return Refusal(Reason.INVALID_API_KEY, _REVOKED)
        if tenant.data_class != facts.data_class:
            facts = context.facts = RequestFacts(facts.tenant, tenant.data_class, facts.location)
        route = context.request.route
        if not server and route is not None and not policy.route_table.has(route):
            return Refusal(Reason.NOT_FOUND, f"the policy in force does not offer the route {route.name}")
        authorization, adapter = self._authorization, context.estimate.adapter
        if adapter and not server and base_model_of(policy, adapter) != context.model:
            return Refusal(Reason.MODEL_NOT_FOUND, f"no model named {adapter!r} is served here")
        verdict = authorization.residency(policy, facts) if server else authorization.mask(policy, context.model, facts)
        if isinstance(verdict, Refusal):
            return verdict
        if server and server not in verdict.permitted.regions:
            return Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {server}", verdict.rejected)
        context.residency = verdict
        return None

    def _refuse_forwarded(self, facts: RequestFacts, policy: Policy) -> Refusal | None:
        """Why this region may not serve a forwarded request. Cached while the policy is in force."""
        forwarded = self._forwarded
        if policy is not self._policy or len(forwarded) >= MAX_CACHED_LOCATIONS:
            self._policy, forwarded = policy, {}
            self._forwarded = forwarded
        if facts not in forwarded:
            forwarded[facts] = refuse_here(policy, facts, self._region)
        return forwarded[facts]


_REVOKED: Final = "the API key was revoked"
