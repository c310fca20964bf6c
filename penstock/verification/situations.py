"""Every kind of request that a policy's residency rules can tell apart: finitely many, so that all can be tried.

The mask knows of a request only what `residency.applies` answers for each rule. Two requests with equal answers have
one mask, so one of them stands for both; where they are, only places that some rule names can make a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.policy.geography import NOWHERE, Location
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, applies, matches_tenant

MAX_LISTED = 4
"""Names in a row, before the others are only counted."""

ELSEWHERE = ("XX", "ZZ", "QM", "QN")
"""Codes that ISO 3166-1 leaves to users: the first that no rule names stands for every country that none names."""

OTHER_SUBDIVISION = "---"
"""Stands for every subdivision that no rule names: no code of ISO 3166-2 looks like this."""


class Situation(msgspec.Struct, frozen=True):
    """Requests that no rule tells apart."""

    facts: RequestFacts
    """One of them."""
    applies: tuple[bool | None, ...]
    """By rule of the policy, what `residency.applies` answers."""
    tenants: tuple[str, ...]
    places: tuple[Location, ...]
    """Where their clients are."""
    anywhere: bool
    """These are all places there are."""

    @property
    def governed_blindly(self) -> bool:
        """A rule would need to know the client's location, and it is not known."""
        return None in self.applies

    def __str__(self) -> str:
        where = "anywhere" if self.anywhere else f"in {listed([spelled(place) for place in self.places])}"
        return f"{listed(self.tenants)}, client {where}"


def places(policy: Policy) -> list[Location]:
    """One location for each that rules can tell apart: unknown, each that is named, and one that is not."""
    countries = {country for rule in policy.residency for country in rule.client_countries}
    subdivisions: dict[str, set[str]] = {}
    for rule in policy.residency:
        for code in rule.client_subdivisions:
            country, _, subdivision = code.partition("-")
            subdivisions.setdefault(country, set()).add(subdivision)
    named = countries | subdivisions.keys()
    found = [NOWHERE, Location(next(code for code in ELSEWHERE if code not in named))]
    for country in sorted(named):
        found.append(Location(country))
        if country in subdivisions:
            found += [Location(country, one) for one in sorted(subdivisions[country] | {OTHER_SUBDIVISION})]
    return found


def situations(policy: Policy) -> list[Situation]:
    """All of them: every tenant of the policy, with its data class, in every place."""
    senders: dict[tuple[bool, ...], dict[str, str]] = {}
    for tenant in policy.tenants.values():
        facts = RequestFacts(tenant.name, tenant.data_class)
        named = tuple(matches_tenant(rule, facts) for rule in policy.residency)
        senders.setdefault(named, {})[tenant.name] = tenant.data_class
    everywhere = places(policy)
    return [one for tenants in senders.values() for one in _of_alike(policy, tenants, everywhere)]


def _of_alike(policy: Policy, tenants: dict[str, str], everywhere: list[Location]) -> Iterator[Situation]:
    """Situations of tenants that the same rules name."""
    tenant, data_class = next(iter(tenants.items()))
    by_answers: dict[tuple[bool | None, ...], list[Location]] = {}
    for place in everywhere:
        facts = RequestFacts(tenant, data_class, place)
        by_answers.setdefault(tuple(applies(rule, facts) for rule in policy.residency), []).append(place)
    for answers, alike in by_answers.items():
        facts = RequestFacts(tenant, data_class, alike[0])
        yield Situation(facts, answers, tuple(tenants), tuple(alike), anywhere=len(alike) == len(everywhere))


def spelled(place: Location) -> str:
    """A place as people read it."""
    if place.country is None:
        return "an unknown place"
    if place.country in ELSEWHERE:
        return "any other country"
    if place.subdivision is None:
        return place.country
    other = place.subdivision == OTHER_SUBDIVISION
    return f"the rest of {place.country}" if other else f"{place.country}-{place.subdivision}"


def listed(words: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    shown = ", ".join(words[:MAX_LISTED])
    return shown if len(words) <= MAX_LISTED else f"{shown} and {len(words) - MAX_LISTED} more"
