"""GET /explain on the admin port: the region and endpoints that this agent would select for a request, with reasons.

The explanation comes from the same function as the control plane's, and includes the waits, spill credits and endpoints
that only the agent has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from urllib.parse import parse_qs

import msgspec

from adapters.geoip import parse_address
from penstock.policy.adapter_patterns import served_model
from penstock.policy.geography import Location, country_error
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.policy.policy import Policy
from penstock.routing.affinity import session_key
from penstock.routing.explain import ExplainQuery, Explanation, explain, tenant_by_key, tenant_of
from penstock.routing.explain_burst import with_burst
from penstock.routing.reasons import ConsideredEndpoint, Reason, Refusal
from penstock.tenancy.tenant_record import TenantRecord
from regional_agent.config.active_config import ActiveConfig
from regional_agent.requests.client_location import Locator
from regional_agent.routing.router import Router

MAX_PARAMETERS = 100

SINGLE = frozenset(
    {"batch", "model", "tenant", "key_digest", "country", "subdivision", "ip", "session", "overflow", "path", "method"}
)
"""Query parameters that may occur once; `tried` may be repeated."""


class BadExplainQuery(Exception):
    """An invalid query. The message names the parameter and the problem."""


class ExplainService:
    """Explains the decisions of this agent's router."""

    def __init__(
        self, router: Router, config: ActiveConfig, locator: Locator, wall_clock: Callable[[], float] = time.time
    ) -> None:
        """Create a service that explains decisions of `router` under the policy and plan of `config`.

        Args:
            wall_clock: Unix time (s), by which API keys expire.
        """
        self._wall_clock = wall_clock
        self._router = router
        self._config = config
        self._locator = locator

    def explain(self, target: bytes, now: float) -> Explanation:
        """Explain the request that a query describes.

        Args:
            target: the target of the HTTP request: `/explain?model=...&tenant=...&country=...`.
            now: by the agent's clock, in seconds.

        Raises:
            BadExplainQuery: the query is not well-formed, or there is no policy yet.
        """
        policy = self._config.policy
        if policy is None:
            raise BadExplainQuery("this agent has no policy yet")
        given = _parameters(target)
        tenant = given.get("tenant")
        record = None if tenant is None else self._config.tenants.find_tenant(tenant)
        if "key_digest" in given:
            tenant, record = tenant_by_key(policy, given["key_digest"]), self._created(given["key_digest"])
            if (tenant is None and record is None) or "tenant" in given:
                raise BadExplainQuery("key_digest: no tenant has this key, or the parameter tenant is present too")
        tried = _tried(target)
        for region in tried:
            if region not in policy.regions:
                raise BadExplainQuery(f"tried: the policy has no region {region!r}")
        location = self._location(given)
        router, overflow = self._router, given.get("overflow", "") == "true"
        name, path, method = served_model(policy, given["model"]), given.get("path", ""), given.get("method", "POST")
        session = given.get("session", "")
        query = ExplainQuery(router.region, name, tenant, location, tried, overflow, path, method, session)
        is_batch = given.get("batch", "") == "true"
        query = msgspec.structs.replace(query, is_batch=is_batch, at=self._wall_clock())
        if record is not None and tenant not in policy.tenants:
            query, tenant = query.by(record), record.name
        model, sender = policy.models.get(query.model), tenant or policy.anonymous_tenant or ""
        if session:
            key = session_key(f"{sender}/{query.model}", session.encode())
            query = msgspec.structs.replace(query, stays_in=router.spilled.region_of(key, now))
        endpoints: tuple[ConsideredEndpoint, ...] = ()
        if model is not None:
            endpoints = router.local.consider(model, sender, session, now) + router.burst.consider(policy, model, now)
        views = router.batch.views(policy.regions, query.model, now)
        work = router.batch.work(policy, query.model)
        query = msgspec.structs.replace(query, max_use=_max_use(policy, query), batch_work=work)
        preempts = policy.preempts_batch(query.model)
        idle = router.queue.idle_slots(query.model, query.max_use, preempts=preempts)
        views[router.region] = msgspec.structs.replace(views[router.region], batch_room=idle)
        plan = self._config.plan
        explanation = explain(policy, plan, query, views, Random(), endpoints)
        if model is not None and explanation.query.model == model.name:
            known = router.burst.known(policy, model, now, is_full=overflow)
            explanation = with_burst(policy, plan, explanation, views, known)
        return msgspec.structs.replace(explanation, queue=router.local.queue.explain(query.model))

    def _created(self, key_digest: str) -> TenantRecord | None:
        """Return the tenant that the API created with a valid key; None if none has the key."""
        try:
            found = self._config.tenants.find_key(bytes.fromhex(key_digest))
        except ValueError:
            return None
        return found.tenant if found is not None and found.key.is_valid(self._wall_clock()) else None

    def _location(self, given: dict[str, str]) -> Location:
        if "ip" not in given:
            country = given.get("country")
            if country is not None and (problem := country_error(country)) is not None:
                raise BadExplainQuery(f"country: {problem}")
            return Location(given.get("country"), given.get("subdivision"))
        address = parse_address(given["ip"])
        if address is None or "country" in given or "subdivision" in given:
            raise BadExplainQuery("ip: is not an IP address, or the parameter country or subdivision is present too")
        return self._locator.locate(address)


def _max_use(policy: Policy, query: ExplainQuery) -> float:
    """Return the part (0-1] of the slots that batch requests of a query may use: that of the tenant's tier, and for a
    tenant with a priority that of the job store, since its only batch requests are those of jobs."""
    tenant = tenant_of(policy, query)
    if isinstance(tenant, Refusal) or tenant.priority == BATCH_PRIORITY:
        return 1.0 if isinstance(tenant, Refusal) else tenant.max_use
    stores = [each for each in policy.job_stores or () if query.origin in (each.covers or frozenset())]
    return min((each.max_use_percent / 100.0 for each in stores), default=1.0)


def _parameters(target: bytes) -> dict[str, str]:
    parameters = _query(target)
    unknown = sorted(parameters.keys() - SINGLE - {"tried"})
    if unknown:
        raise BadExplainQuery(f"{unknown[0]}: unknown parameter; use {', '.join(sorted(SINGLE))}, tried")
    repeated = sorted(name for name, values in parameters.items() if name in SINGLE and len(values) > 1)
    if repeated:
        raise BadExplainQuery(f"{repeated[0]}: is repeated")
    if "model" not in parameters:
        raise BadExplainQuery("model: is missing")
    return {name: values[0] for name, values in parameters.items() if name in SINGLE}


def _tried(target: bytes) -> dict[str, Reason]:
    tried = {}
    for value in _query(target).get("tried", ()):
        region, _, reason = value.partition(":")
        try:
            tried[region] = Reason(reason or Reason.UNREACHABLE)
        except ValueError:
            raise BadExplainQuery(f"tried: {reason!r} is not a reason; use region:reason") from None
    return tried


def _query(target: bytes) -> dict[str, list[str]]:
    query = target.partition(b"?")[2].decode("latin-1")
    try:
        return parse_qs(query, strict_parsing=bool(query), max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise BadExplainQuery(f"the query is malformed: {error}") from None
