"""Record sets for other DNS servers: what they contain, and when they change."""

from __future__ import annotations

from math import inf

import msgspec
import pytest

from penstock.dns.exports import dns_endpoint, octodns_zone
from penstock.dns.name_answer import NameServerView
from penstock.dns.record_sets import NameRecords, Publication, RecordSet, name_records, next_publication
from penstock.health.region_health import RegionState
from penstock.planning.plan import RegionPlan
from penstock.policy.geography import Location
from penstock.policy.kinds.dns_names import DnsStrategy
from penstock.policy.kinds.region_entry import RegionEntry
from tests.support import planet
from tests.support.dns_names import ENTRIES, ZONE, a_name, all_live, dns_policy

OPEN = a_name("open", tenants=("open",))
EU = a_name("eu", tenants=("personal",))


def plans(**shares: float) -> dict[str, RegionPlan]:
    """A plan with these shares for each origin."""
    return {origin: planet.plan(origin, "eu-de+eu-es+us-east", **shares) for origin in ENTRIES}


SHARED = plans(us_east=0.8, eu_de=0.2)


def records(name=OPEN, policy=None, **states: RegionState) -> NameRecords:
    return name_records(policy or dns_policy(), name, NameServerView(all_live(**states), SHARED))


def test_a_name_has_the_addresses_of_all_regions_with_a_share() -> None:
    assert records().record_sets == (
        RecordSet("A", ("192.0.2.10", "198.51.100.30"), OPEN.ttl_s),
        RecordSet("AAAA", ("2001:db8::10",), OPEN.ttl_s),
    )
    assert records(us_east=RegionState.FAILED).record_sets == (
        RecordSet("A", ("192.0.2.10",), OPEN.ttl_s),
        RecordSet("AAAA", ("2001:db8::10",), OPEN.ttl_s),
    )


@pytest.mark.parametrize("strategy", [DnsStrategy.SHARES, DnsStrategy.NEAREST])
def test_regions_that_have_had_no_demand_are_among_the_records(strategy: DnsStrategy) -> None:
    """Otherwise no client would ever reach them."""
    name = msgspec.structs.replace(OPEN, strategy=strategy)
    here = {"eu-de": planet.plan("eu-de", "eu-de+eu-es+us-east", eu_de=1.0)}
    for demand in ({}, here):
        found = name_records(dns_policy(), name, NameServerView(all_live(), demand))
        assert found.shares == pytest.approx(dict.fromkeys(ENTRIES, 1 / 3))
        assert [each.values for each in found.record_sets] == [
            ("192.0.2.10", "192.0.2.20", "198.51.100.30"),
            ("2001:db8::10", "2001:db8::20"),
        ]


def test_a_client_subnet_has_the_records_of_its_place() -> None:
    live = NameServerView(all_live(), {})
    here = {place: name_records(dns_policy(), OPEN, live, Location(place)).shares for place in ("US", "ES")}
    assert here == {"US": {"us-east": 1.0}, "ES": {"eu-es": 1.0}}


def test_a_cname_stands_alone() -> None:
    policy = dns_policy()
    there = msgspec.structs.replace(policy.regions["us-east"], entry=RegionEntry(cname="lb.example.net"))
    policy = msgspec.structs.replace(policy, regions=policy.regions | {"us-east": there})
    assert records(policy=policy).record_sets == (RecordSet("CNAME", ("lb.example.net.",), OPEN.ttl_s),)
    # Of a region with a smaller share, it is left out.
    mixed = NameServerView(all_live(), plans(us_east=0.2, eu_de=0.8))
    found = name_records(policy, OPEN, mixed).record_sets
    assert [(each.kind, each.values) for each in found] == [("A", ("192.0.2.10",)), ("AAAA", ("2001:db8::10",))]


class TestPublication:
    NEW = Publication({}, -inf)

    def test_only_changes_are_published(self) -> None:
        wanted = {OPEN.name: records()}
        first = next_publication(self.NEW, wanted, 100.0, 5.0)
        assert first.changed == {OPEN.name: records().record_sets}
        assert next_publication(first.publication, wanted, 200.0, 5.0).changed == {}

    def test_changes_are_rate_limited(self) -> None:
        first = next_publication(self.NEW, {OPEN.name: records()}, 100.0, 5.0)
        lost = {OPEN.name: records(us_east=RegionState.FAILED)}
        assert next_publication(first.publication, lost, 104.9, 5.0).changed == {}
        assert next_publication(first.publication, lost, 105.0, 5.0).changed == {OPEN.name: lost[OPEN.name].record_sets}

    def test_a_name_without_a_live_region_keeps_its_records(self) -> None:
        first = next_publication(self.NEW, {EU.name: records(EU)}, 100.0, 5.0)
        none = {EU.name: records(EU, eu_de=RegionState.FAILED, eu_es=RegionState.FAILED)}
        step = next_publication(first.publication, none, 200.0, 5.0)
        assert (step.changed, step.kept) == ({}, (EU.name,))
        assert step.publication.names == first.publication.names

    def test_a_name_without_a_live_region_leaves_regions_that_are_not_permitted_any_more(self) -> None:
        first = next_publication(self.NEW, {EU.name: records(OPEN)}, 100.0, 5.0)
        none = {EU.name: records(EU, eu_de=RegionState.FAILED, eu_es=RegionState.FAILED)}
        step = next_publication(first.publication, none, 200.0, 5.0)
        assert [each.values for each in step.changed[EU.name]] == [
            ("192.0.2.10", "192.0.2.20"),
            ("2001:db8::10", "2001:db8::20"),
        ]
        assert step.kept == (EU.name,)
        assert next_publication(step.publication, none, 300.0, 5.0).changed == {}

    def test_a_removed_name_keeps_its_records(self) -> None:
        first = next_publication(self.NEW, {EU.name: records(EU)}, 100.0, 5.0)
        assert next_publication(first.publication, {}, 200.0, 5.0).publication.names == first.publication.names


def test_an_octodns_zone() -> None:
    assert octodns_zone([records(), records(EU)], ZONE.name) == {
        "eu": [
            {"type": "A", "ttl": 10, "values": ["192.0.2.10"]},
            {"type": "AAAA", "ttl": 10, "values": ["2001:db8::10"]},
        ],
        "open": [
            {"type": "A", "ttl": 10, "values": ["192.0.2.10", "198.51.100.30"]},
            {"type": "AAAA", "ttl": 10, "values": ["2001:db8::10"]},
        ],
    }
    assert octodns_zone([records()], "example.org") == {}
    alias = msgspec.structs.replace(records(), record_sets=(RecordSet("CNAME", ("lb.example.net.",), 10),))
    assert octodns_zone([alias], ZONE.name) == {"open": {"type": "CNAME", "ttl": 10, "value": "lb.example.net."}}


def test_a_dns_endpoint() -> None:
    manifest = dns_endpoint([records(us_east=RegionState.FAILED)], "edge")
    assert (manifest["apiVersion"], manifest["kind"]) == ("externaldns.k8s.io/v1alpha1", "DNSEndpoint")
    assert manifest["metadata"] == {
        "name": "penstock", "namespace": "edge", "labels": {"app.kubernetes.io/managed-by": "penstock"}
    }  # fmt: skip
    assert manifest["spec"]["endpoints"] == [
        {"dnsName": "open.api.example.com", "recordTTL": 10, "recordType": "A", "targets": ["192.0.2.10"]},
        {"dnsName": "open.api.example.com", "recordTTL": 10, "recordType": "AAAA", "targets": ["2001:db8::10"]},
    ]
