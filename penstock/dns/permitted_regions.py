"""The regions that a DNS name may resolve to: residency for all its tenants, before health, shares and distance.

The client subnet of a query (EDNS, RFC 7871) states where the client is. The resolver's address does not: a resolver
may serve clients of another country. A query without a client subnet is therefore answered by the regions that
residency permits to the clients of the name wherever they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.dns_names import DnsName
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, applies, matches_tenant, within


def permitted_regions(policy: Policy, name: DnsName, client: Location = NOWHERE) -> frozenset[str]:
    """Return the regions that `name` may resolve to; empty if there is none.

    Args:
        client: location of the client by its subnet; NOWHERE if the query has no client subnet.
    """
    permitted = name.covers.intersection(policy.regions)
    for facts in senders_of(policy, name, client):
        for rule in policy.residency:
            if may_apply(rule, name, facts):
                permitted = within(rule, permitted)
    return permitted


def serving_regions(policy: Policy, name: DnsName, client: Location = NOWHERE) -> frozenset[str]:
    """Return the regions that may process requests of some client of `name`, whichever region the client enters at."""
    found: frozenset[str] = frozenset()
    for facts in senders_of(policy, name, client):
        permitted = frozenset(policy.regions)
        for rule in policy.residency:
            if applies(rule, facts):
                permitted = within(rule, permitted)
        found |= permitted
    return found


def may_apply(rule: ResidencyRule, name: DnsName, facts: RequestFacts) -> bool:
    """Whether a rule applies to a client of the name or, where its location is unknown, may apply."""
    applied = applies(rule, facts)
    if applied is not None:
        return applied
    if facts.location.country is not None or not (name.client_countries or name.client_subdivisions):
        return True
    countries = {*name.client_countries, *_countries(name.client_subdivisions)}
    if rule.client_countries & countries or rule.client_subdivisions & name.client_subdivisions:
        return True
    return not name.client_countries.isdisjoint(_countries(rule.client_subdivisions))


def senders_of(policy: Policy, name: DnsName, client: Location) -> list[RequestFacts]:
    """Facts that represent the tenants of a name: one for all tenants to which the same rules apply."""
    tenants: Iterable[Tenant] = policy.senders.values()
    if name.tenants:
        tenants = [policy.senders[tenant] for tenant in name.tenants if tenant in policy.senders]
    alike: dict[tuple[bool, ...], RequestFacts] = {}
    for tenant in tenants:
        facts = RequestFacts(tenant.name, tenant.data_class, client)
        alike.setdefault(tuple(matches_tenant(rule, facts) for rule in policy.residency), facts)
    return list(alike.values())


def _countries(subdivisions: Iterable[str]) -> frozenset[str]:
    return frozenset(code.partition("-")[0] for code in subdivisions)
