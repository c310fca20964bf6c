"""Checks that no name resolves to a region that residency forbids to one of its tenants, with the live answers.

For every name, every location that the rules distinguish and queries without a client subnet, the answers are compared
with an independent evaluation of the rules (`breach.permitted`), while forbidden regions are healthy and have nearly
all of the plan's shares, and while permitted regions are lost one by one, all but one, and all together. A query
without a client subnet may come from any client of the name: its answer must be permitted for each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.dns.name_answer import EntryState, NameServerView, Question, answer_name
from penstock.dns.permitted_regions import permitted_regions
from penstock.dns.zone_records import ADDRESS_TYPES, has_cname, has_type, region_records
from penstock.health.region_health import RegionState
from penstock.planning.plan import Arc, ArcReason, ClassPlan, RegionPlan
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.dns_names import DnsName
from penstock.policy.kinds.region_entry import RegionEntry
from penstock.policy.policy import Policy
from penstock.policy.residency import cite, residency_class
from penstock.verification.breach import Breach, forbidding, permitted
from penstock.verification.situations import ELSEWHERE, OTHER_SUBDIVISION, Situation, places, spelled


class NamesChecked(msgspec.Struct, frozen=True):
    """The result of checking all names of a policy."""

    answers: int
    """Number of answers computed."""
    breaches: tuple[Breach, ...]
    warnings: tuple[str, ...]
    """Names that resolve to no region for some clients, whatever the state of the fleet, or not by their shares."""


def at_names(policy: Policy, found: list[Situation]) -> NamesChecked:
    """Check every name of a policy; `found` are the situations of the policy."""
    everywhere = places(policy)
    allowed = [(situation, permitted(policy, situation)) for situation in found]
    answers, breaches, warnings = 0, list[Breach](), list[str]()
    # Names that differ in nothing else have the same answers.
    alike = {msgspec.structs.replace(name, name="", ttl_s=1): name for name in (policy.dns_names or {}).values()}
    for name in alike.values():
        for client in everywhere:
            actual = [place for place in everywhere if _may_be(place, client, name, everywhere)]
            concerned = [(situation, regions) for situation, regions in allowed if _concerns(situation, name, actual)]
            expected = name.covers.intersection(policy.regions, *(regions for _, regions in concerned))
            resolved = set(permitted_regions(policy, name, client))
            for lost, fleet in _fleets(policy, expected):
                answers += 1
                chosen = answer_name(policy, name, Question(client, client), fleet).regions
                resolved |= chosen
                breaches += [
                    _breach(policy, name, client, region, (), "is lost, and answered") for region in chosen & lost
                ]
            for region in sorted(resolved - expected):
                situations = [situation for situation, regions in concerned if region not in regions]
                rules = [cite(rule) for each in situations[:1] for rule in forbidding(policy, each, region)]
                breaches.append(_breach(policy, name, client, region, tuple(rules), "the name resolves to it"))
            if client == NOWHERE and not expected:
                warnings.append(
                    f"DNS name {name.name} resolves to no region without a client subnet; name its `clients`"
                )
        warnings += _uneven(policy, name)
        breaches += [
            _breach(policy, name, NOWHERE, region, (), problem) for region, problem in _misplaced(policy, name)
        ]
    return NamesChecked(answers, tuple(breaches), tuple(warnings))


def _concerns(situation: Situation, name: DnsName, actual: list[Location]) -> bool:
    """Whether requests of a situation may come from clients of a name at one of these places."""
    if name.tenants and not set(name.tenants) & set(situation.tenants):
        return False
    return any(place in actual for place in situation.places)


def _may_be(place: Location, client: Location, name: DnsName, everywhere: list[Location]) -> bool:
    """Whether a client that a query places at `client` may be at `place`, a location that is known completely."""
    if place.country is None:
        return False
    if place.subdivision is None and any(
        other.subdivision is not None and other.country == place.country for other in everywhere
    ):
        return False
    if client.country is not None:
        return place.country == client.country and client.subdivision in (None, place.subdivision)
    return _is_client(place, name, everywhere)


def _is_client(place: Location, name: DnsName, everywhere: list[Location]) -> bool:
    """Whether a name has clients at a place, which may represent places that no rule names."""
    countries = {*name.client_countries, *(code.partition("-")[0] for code in name.client_subdivisions)}
    if not countries:
        return True
    if place.country in ELSEWHERE:
        return not countries <= {other.country for other in everywhere}
    if place.country in name.client_countries:
        return True
    here = {code.partition("-")[2] for code in name.client_subdivisions if code.startswith(f"{place.country}-")}
    if place.subdivision == OTHER_SUBDIVISION:
        return not here <= {other.subdivision for other in everywhere if other.country == place.country}
    return bool(here) if place.subdivision is None else place.subdivision in here


def _fleets(policy: Policy, expected: frozenset[str]) -> Iterator[tuple[frozenset[str], NameServerView]]:
    """Fleets in which forbidden regions are live and planned, with the permitted regions that are lost."""
    ready = frozenset(policy.models)
    arcs = tuple(Arc(region, 0.001 if region in expected else 0.999, ArcReason.HOME) for region in policy.regions)
    residency = residency_class(expected).name
    classes = tuple(ClassPlan(model, residency, arcs, tuple(policy.regions)) for model in policy.models)
    planned = {region: RegionPlan(region, 1, 1, "", 0.0, classes) for region in policy.regions}
    losses = [frozenset[str](), expected]
    losses += [frozenset({region}) for region in expected] + [expected - {region} for region in expected]
    for lost in losses:
        states = {
            region: EntryState(RegionState.FAILED if region in lost else RegionState.HEALTHY, ready)
            for region in policy.regions
        }
        for plans in ({}, planned):
            yield lost, NameServerView(states, plans)


def _uneven(policy: Policy, name: DnsName) -> Iterator[str]:
    """Warnings about a type of addresses that some regions of a name have and others lack."""
    entered = [region for region in sorted(name.covers & policy.regions.keys()) if region_records(policy, name, region)]
    for kind, version in zip(ADDRESS_TYPES, ("IPv4", "IPv6"), strict=True):
        lacking = [region for region in entered if not (has_type(policy, region, kind) or has_cname(policy, region))]
        if 0 < len(lacking) < len(entered):
            cause = "unlike other regions of the name"
            effect = "do not follow its shares, and may find no address in a failover order"
            if not any(has_type(policy, region, kind) for region in entered):
                # No answer can have a `cname` for one type beside addresses of the other (RFC 1034, section 3.6.2).
                cause, effect = "beside a region with a cname", "find no address in answers of these regions"
            yield (
                f"DNS name {name.name}: {', '.join(lacking)} without {version} addresses, {cause}:"
                f" clients with {version} {effect}"
            )


def _misplaced(policy: Policy, name: DnsName) -> Iterator[tuple[str, str]]:
    """Regions whose records, or whose addresses among those of the last resort, are those of another region."""
    owners = {
        content: region.name
        for region in policy.regions.values()
        if isinstance(region.entry, RegionEntry)
        for content in (*region.entry.addresses, f"{region.entry.cname}.")
    }
    for region in name.covers & policy.regions.keys():
        for record in region_records(policy, name, region):
            if owners.get(record.content, region) != region:
                yield owners[record.content], f"has the address {record.content} of {region}"
    for address in name.last_resort:
        if address in owners:
            yield owners[address], f"has the address {address} of the last resort"


def _breach(
    policy: Policy, name: DnsName, client: Location, region: str, rules: tuple[str, ...], detail: str
) -> Breach:
    asked = "without a client subnet" if client.country is None else f"with a client subnet in {spelled(client)}"
    return Breach("dns", f"{name.name}, asked {asked}", region, (), detail, rules)
