"""Enumerates the requests that a policy's residency rules distinguish: finitely many, so that all can be checked.

The mask depends on a request only through the result of `residency.applies` for each rule. Requests with equal results
have equal masks, so one of them represents all; of locations, only those that a rule names make a difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from penstock.policy.geography import NOWHERE, Location
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, applies, matches_tenant

MAX_LISTED = 4
"""Maximum number of names in a list; further names are counted."""

ELSEWHERE = ("XX", "ZZ", "QM", "QN")
"""User-assigned codes of ISO 3166-1. The first that no rule names represents all countries that no rule names."""

OTHER_SUBDIVISION = "---"
"""Represents every subdivision that no rule names; it is not a valid ISO 3166-2 code."""


class Situation(msgspec.Struct, frozen=True):
    """A set of requests that no rule distinguishes."""

    facts: RequestFacts
    """The facts of one of the requests."""
    applies: tuple[bool | None, ...]
    """The result of `residency.applies`, for each rule of the policy."""
    tenants: tuple[str, ...]
    places: tuple[Location, ...]
    """Locations of the clients."""
    anywhere: bool
    """Whether `places` covers all locations."""

    @property
    def governed_blindly(self) -> bool:
        """Whether a rule depends on the client's location and the location is unknown."""
        return None in self.applies

    def __str__(self) -> str:
        where = "anywhere" if self.anywhere else f"in {listed([spelled(place) for place in self.places])}"
        return f"{listed(self.tenants)}, client {where}"


def places(policy: Policy) -> list[Location]:
    """One location of each kind that rules distinguish: unknown, each that a rule names, and one that no rule names."""
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
            found += [
                Location(country, subdivision) for subdivision in sorted(subdivisions[country] | {OTHER_SUBDIVISION})
            ]
    return found


def situations(policy: Policy) -> list[Situation]:
    """All situations: every tenant of the policy, and the created ones of each tier, at every location."""
    senders: dict[tuple[bool, ...], dict[str, str]] = {}
    for tenant in policy.senders.values():
        facts = RequestFacts(tenant.name, tenant.data_class)
        named = tuple(matches_tenant(rule, facts) for rule in policy.residency)
        senders.setdefault(named, {})[tenant.name] = tenant.data_class
    everywhere = places(policy)
    return [situation for tenants in senders.values() for situation in _of_alike(policy, tenants, everywhere)]


def _of_alike(policy: Policy, tenants: dict[str, str], everywhere: list[Location]) -> Iterator[Situation]:
    """Situations of tenants that match the same rules."""
    tenant, data_class = next(iter(tenants.items()))
    by_answers: dict[tuple[bool | None, ...], list[Location]] = {}
    for place in everywhere:
        facts = RequestFacts(tenant, data_class, place)
        by_answers.setdefault(tuple(applies(rule, facts) for rule in policy.residency), []).append(place)
    for answers, alike in by_answers.items():
        facts = RequestFacts(tenant, data_class, alike[0])
        yield Situation(facts, answers, tuple(tenants), tuple(alike), anywhere=len(alike) == len(everywhere))


def spelled(place: Location) -> str:
    """A location as shown in reports."""
    if place.country is None:
        return "an unknown place"
    if place.country in ELSEWHERE:
        return "any other country"
    if place.subdivision is None:
        return place.country
    other = place.subdivision == OTHER_SUBDIVISION
    return f"the rest of {place.country}" if other else f"{place.country}-{place.subdivision}"


def listed(words: Sequence[str]) -> str:
    """The first MAX_LISTED words, and the number of the others."""
    shown = ", ".join(words[:MAX_LISTED])
    return shown if len(words) <= MAX_LISTED else f"{shown} and {len(words) - MAX_LISTED} more"
