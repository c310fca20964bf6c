"""DNS names, zones and entries as documents: what compiles, and the errors of what does not."""

from __future__ import annotations

import msgspec
import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from penstock.policy.kinds.dns_names import DnsName
from tests.support.policy_bundle import BUNDLE

ZONE = """\
apiVersion: penstock/v1
kind: DnsZone
name: api.example.com
name_servers: {ns1.api.example.com: [192.0.2.53], ns.example.net: []}
contact: hostmaster.example.com
"""
NAME = """\
apiVersion: penstock/v1
kind: DnsName
name: eu.api.example.com
regions: {jurisdictions: [EU]}
"""
ENTRY = "city: Frankfurt\nentry: {url: 'https://de.example.com', addresses: [192.0.2.10, '2001:db8::10']}"


def bundle(*documents: str, entry: str = ENTRY, other_entry: str = "") -> dict[str, str]:
    places = BUNDLE["places.yaml"].replace("city: Frankfurt", entry)
    places = places.replace("city: Washington", f"city: Washington\n{other_entry}")
    return {**BUNDLE, "places.yaml": places, "dns.yaml": "---\n".join(documents)}


def name(*lines: str) -> str:
    return NAME + "".join(f"{line}\n" for line in lines)


def compiled(*documents: str) -> DnsName:
    policy = compile_bundle(bundle(*documents))
    (found,) = (policy.dns_names or {}).values()
    return found


def test_jurisdictions_and_blocs_become_regions_and_countries() -> None:
    found = compiled(ZONE, name("clients: {countries: [EEA]}"))
    assert (found.zone, found.covers, found.client_countries) == (
        "api.example.com",
        frozenset({"eu-de"}),
        frozenset({"DE", "ES", "NO"}),
    )


def test_a_policy_without_names_has_no_field_of_them() -> None:
    # Earlier releases read such policies, and their digest does not change.
    assert b"dns" not in msgspec.json.encode(compile_bundle(BUNDLE))
    assert b'"entry"' not in msgspec.json.encode(compile_bundle(BUNDLE))


def test_the_order_of_a_failover_is_what_the_name_covers() -> None:
    found = compiled(ZONE, name("strategy: failover", "failover_order: [eu-de]"))
    assert found.covers == {"eu-de"}


@pytest.mark.parametrize(
    ("documents", "entries", "problem"),
    [
        ((NAME,), {}, "is in no zone"),
        ((ZONE, NAME.replace("eu.api", "a.b.api")), {}, "is below b.api.example.com, which has no records"),
        ((ZONE, NAME.replace("eu.api.example.com", "Eu.api.example.com")), {}, "is not well-formed"),
        ((ZONE, name("strategy: failover")), {}, "has no order of its regions"),
        ((ZONE, name("failover_order: [eu-de]")), {}, "`failover_order` has no effect"),
        ((ZONE, name("strategy: failover", "failover_order: [us-east]")), {}, "us-east is not among the regions"),
        ((ZONE, name("last_resort: [192.0.2.10]")), {}, "192.0.2.10 is an address of the region eu-de"),
        ((ZONE, name("last_resort: [192.0.2.999]")), {}, "is not an address"),
        ((ZONE, name("ttl_s: 0")), {}, "is out of bounds"),
        ((ZONE, NAME), {"entry": "city: Frankfurt"}, "no region of the name has addresses"),
        ((ZONE, NAME), {"other_entry": "entry: {addresses: [192.0.2.10]}"}, "is the entry of the region eu-de"),
        ((ZONE, NAME), {"other_entry": "entry: {addresses: [192.0.2.9], cname: x.y}"}, "has `addresses` and `cname`"),
        ((ZONE, NAME), {"other_entry": "entry: {addresses: ['2001:DB8::1']}"}, "is not well-formed"),
        ((ZONE, NAME), {"other_entry": "entry: {addresses: ['2001:db8:0::1']}"}, "is not an address as it is written"),
        ((ZONE, NAME), {"other_entry": "entry: {url: 'https://x.example/path'}"}, "is not well-formed"),
        ((ZONE.replace("[192.0.2.53]", "[]"), NAME), {}, "is in the zone and has no address"),
        ((ZONE.replace("ns1.api", "ns1.dns.api"), NAME), {}, "is below dns.api.example.com, which has no records"),
        ((ZONE.replace("ns1.api", "eu.api"), NAME), {}, "is the name of a DnsName"),
        ((ZONE.replace("{ns1.api.example.com: [192.0.2.53], ns.example.net: []}", "{}"), NAME), {}, "no name servers"),
    ],
)
def test_contradictions_are_errors(documents: tuple[str, ...], entries: dict[str, str], problem: str) -> None:
    with pytest.raises(PolicyRefused) as refused:
        compile_bundle(bundle(*documents, **entries))
    assert problem in str(refused.value), refused.value
