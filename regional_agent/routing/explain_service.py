"""GET /explain on the admin face: where a request would go from here and why nowhere else, as this agent knows it now.

The same function as the control plane's, with what only the agent has: waits, spill credits, endpoints.
"""

from __future__ import annotations

from random import Random
from urllib.parse import parse_qs

from adapters.geoip import parse_address
from penstock.policy.geography import Location, country_error
from penstock.routing.explain import ExplainQuery, Explanation, explain, tenant_by_key
from penstock.routing.reasons import Reason
from regional_agent.config.active_config import ActiveConfig
from regional_agent.routing.locate import Locator
from regional_agent.routing.router import Router

MAX_PARAMETERS = 100

SINGLE = frozenset({"model", "tenant", "key_digest", "country", "subdivision", "ip", "session", "overflow"})
"""Query parameters that are given once; `tried` may be repeated."""


class BadQuestion(Exception):
    """What is asked cannot be explained; the message says what to ask instead."""


class ExplainService:
    """Explains the decisions of this agent's router."""

    def __init__(self, router: Router, config: ActiveConfig, locator: Locator) -> None:
        """Create a service that explains decisions of `router` under the policy and plan of `config`."""
        self._router = router
        self._config = config
        self._locator = locator

    def explain(self, target: bytes, now: float) -> Explanation:
        """The explanation of the request that a query describes.

        Args:
            target: of the HTTP request: `/explain?model=...&tenant=...&country=...`.
            now: by the agent's clock, in seconds.

        Raises:
            BadQuestion: the query is not well-formed, or there is no policy yet.
        """
        policy = self._config.policy
        if policy is None:
            raise BadQuestion("this agent has no policy yet")
        given = _parameters(target)
        tenant = given.get("tenant")
        if "key_digest" in given:
            tenant = tenant_by_key(policy, given["key_digest"])
            if tenant is None or "tenant" in given:
                raise BadQuestion("key_digest: no tenant has this key, or tenant is given too")
        tried = _tried(target)
        for region in tried:
            if region not in policy.regions:
                raise BadQuestion(f"tried: there is no region {region!r}")
        location = self._location(given)
        router, overflow = self._router, given.get("overflow", "") == "true"
        asked = ExplainQuery(router.region, given["model"], tenant, location, tried, overflow)
        model, sender = policy.models.get(asked.model), tenant or policy.anonymous_tenant or ""
        endpoints = () if model is None else router.consider(model, sender, given.get("session", ""), now)
        views = router.views(policy.regions, asked.model, now)
        return explain(policy, self._config.plan, asked, views, Random(), endpoints)

    def _location(self, given: dict[str, str]) -> Location:
        if "ip" not in given:
            country = given.get("country")
            if country is not None and (flaw := country_error(country)) is not None:
                raise BadQuestion(f"country: {flaw}")
            return Location(given.get("country"), given.get("subdivision"))
        address = parse_address(given["ip"])
        if address is None or "country" in given or "subdivision" in given:
            raise BadQuestion("ip: is no address, or country is given too")
        return self._locator.locate(address)


def _parameters(target: bytes) -> dict[str, str]:
    many = _query(target)
    unknown = sorted(many.keys() - SINGLE - {"tried"})
    if unknown:
        raise BadQuestion(f"{unknown[0]}: no such parameter; there are {', '.join(sorted(SINGLE))} and tried")
    twice = sorted(name for name, values in many.items() if name in SINGLE and len(values) > 1)
    if twice:
        raise BadQuestion(f"{twice[0]}: is given twice")
    if "model" not in many:
        raise BadQuestion("model: is missing")
    return {name: values[0] for name, values in many.items() if name in SINGLE}


def _tried(target: bytes) -> dict[str, Reason]:
    tried = {}
    for one in _query(target).get("tried", ()):
        region, _, reason = one.partition(":")
        try:
            tried[region] = Reason(reason or Reason.UNREACHABLE)
        except ValueError:
            raise BadQuestion(f"tried: {reason!r} is no reason; write region:reason") from None
    return tried


def _query(target: bytes) -> dict[str, list[str]]:
    query = target.partition(b"?")[2].decode("latin-1")
    try:
        return parse_qs(query, strict_parsing=bool(query), max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise BadQuestion(f"the query is not well-formed: {error}") from None
