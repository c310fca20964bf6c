"""The record sets of the names of a policy for other DNS servers: what they should have now, and what changes.

Such servers have one answer for all clients, so that names have the regions that are permitted without a client subnet.
A name without a live region keeps its records: a wrong view of health must not remove a name from the DNS.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.dns.name_answer import NameAnswer, NameServerView, Question, answer_name
from penstock.dns.zone_records import ADDRESS_TYPES, Record, has_cname, region_records
from penstock.policy.geography import NOWHERE, Location
from penstock.policy.kinds.dns_names import DnsName
from penstock.policy.policy import Policy
from penstock.routing.reasons import Rejection


class RecordSet(msgspec.Struct, frozen=True):
    """All records of one type of a name."""

    kind: str
    """`A`, `AAAA` or `CNAME`."""
    values: tuple[str, ...]
    """Sorted."""
    ttl_s: int
    """Time (s) for which resolvers cache the records."""


class NameRecords(msgspec.Struct, frozen=True):
    """One name: what it resolves to, and its records for a server that has one answer for all clients."""

    name: str
    zone: str
    ttl_s: int
    shares: dict[str, float]
    """Probability (0-1) of each region; empty if no permitted region is live."""
    permitted: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    record_sets: tuple[RecordSet, ...]
    """Records of all regions with a share; empty if no permitted region is live."""
    permitted_sets: tuple[RecordSet, ...] = ()
    """Records of all permitted regions, live or not: instead of records of regions that are not permitted any more."""


def name_records(policy: Policy, name: DnsName, fleet: NameServerView, client: Location = NOWHERE) -> NameRecords:
    """Return what a name resolves to, for a client subnet at a location or without one."""
    answer = answer_name(policy, name, Question(client, client), fleet)
    return NameRecords(
        name.name,
        name.zone,
        name.ttl_s,
        answer.shares,
        tuple(sorted(answer.permitted)),
        answer.rejected,
        _record_sets(policy, name, answer),
        _record_sets(policy, name, NameAnswer(dict.fromkeys(answer.permitted, 1.0), answer.permitted)),
    )


def _record_sets(policy: Policy, name: DnsName, answer: NameAnswer) -> tuple[RecordSet, ...]:
    """The records of all regions with a share; those of the largest share alone if they are a CNAME."""
    largest_first = sorted(answer.shares, key=lambda region: (-answer.shares[region], region))
    if largest_first and has_cname(policy, largest_first[0]):
        return _sets(region_records(policy, name, largest_first[0]))
    return _sets(
        record
        for kind in ADDRESS_TYPES
        for region in answer.shares_of_type.get(kind, answer.shares)
        for record in region_records(policy, name, region)
        if record.kind == kind
    )


def _sets(records: Iterable[Record]) -> tuple[RecordSet, ...]:
    values: dict[tuple[str, int], set[str]] = {}
    for record in records:
        values.setdefault((record.kind, record.ttl_s), set()).add(record.content)
    return tuple(RecordSet(kind, tuple(sorted(found)), ttl_s) for (kind, ttl_s), found in sorted(values.items()))


class Publication(msgspec.Struct, frozen=True):
    """What a DNS server has, and when that last changed."""

    names: dict[str, tuple[RecordSet, ...]]
    changed_at: float
    """Time (s) of the last change, by the clock of the caller; -inf before the first."""


class PublicationStep(msgspec.Struct, frozen=True):
    """The next publication."""

    publication: Publication
    changed: dict[str, tuple[RecordSet, ...]]
    """Names whose records change now, and their new records."""
    kept: tuple[str, ...]
    """Names without a live region, which keep their records."""
    delayed: bool = False
    """Whether there are changes that the minimum interval delays."""


def next_publication(
    current: Publication, wanted: Mapping[str, NameRecords], now: float, min_interval_s: float
) -> PublicationStep:
    """Return what to publish now: only changes, at most one publication in `min_interval_s`, and never an empty name.

    A name without a live region keeps its records, unless one of them is of a region that is not permitted any more: it
    then has those of all permitted regions. Names that the policy no longer has keep their records too: an operator
    removes them.
    """
    kept = tuple(sorted(name for name, found in wanted.items() if not found.record_sets))
    changed: dict[str, tuple[RecordSet, ...]] = {}
    for name, found in wanted.items():
        has = current.names.get(name, ())
        if found.record_sets:
            record_sets = found.record_sets
        elif _values(has) <= _values(found.permitted_sets):
            continue
        else:
            record_sets = found.permitted_sets
        if record_sets and record_sets != has:
            changed[name] = record_sets
    if not changed or now - current.changed_at < min_interval_s:
        return PublicationStep(current, {}, kept, delayed=bool(changed))
    return PublicationStep(Publication({**current.names, **changed}, now), changed, kept)


def _values(record_sets: Iterable[RecordSet]) -> set[tuple[str, str]]:
    return {(each.kind, value) for each in record_sets for value in each.values}
