"""A client that is no trusted proxy is located by its address, whatever headers it or an earlier client sent."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from ipaddress import ip_network
from math import inf
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mmdb_writer import MMDBWriter
from netaddr import IPSet

from penstock.cost.cost_estimate import CostEstimator
from penstock.meters.demand_meter import DemandMeter
from penstock.policy.geography import COUNTRIES, NOWHERE, Location
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.kinds.tenants import Tenant
from penstock.policy.policy import Policy
from regional_agent.config.active_config import ActiveConfig
from regional_agent.http.messages import Request
from regional_agent.objects.known_objects import KnownObjects
from regional_agent.requests.authorization import Authorization, Sender
from regional_agent.requests.client_location import Locator
from regional_agent.requests.client_request_reader import ClientRequestReader
from regional_agent.requests.request_context import RequestContext
from regional_agent.tenants.tenant_index import TenantIndex
from tests.support.budgets import equal_budgets

POLICY = Policy(
    {"de-1": Region("de-1", "DE", 50.0, 8.0)},
    {"m": Model("m")},
    {"t": Tenant("t", "open", (sha256(b"key").hexdigest(),))},
    (),
)
PROXY = "10.0.0.1"
PLACES = {"203.0.113.9": "DE", "198.51.100.7": "JP", "192.0.2.1": None}
"""Clients' addresses, and what the database says of them."""


@pytest.fixture(scope="module")
def locator() -> Iterator[Locator]:
    """A locator with the networks of PLACES, which trusts PROXY."""
    writer = MMDBWriter(database_type="GeoLite2-Country")
    for ip, country in PLACES.items():
        if country is not None:
            writer.insert_network(IPSet([ip]), {"country": {"iso_code": country}})
    with TemporaryDirectory() as directory:
        file = Path(directory) / "geo.mmdb"
        writer.to_db_file(str(file))
        made = Locator(file, [ip_network("10.0.0.0/8")], "X-Country")
        yield made


def place(reader: ClientRequestReader, peer_ip: str, headers: list[tuple[bytes, bytes]]) -> Location:
    """The location of a request's client."""
    request = Request()
    request.whole, request.body = True, msgspec.json.encode({"model": "m"})
    request.headers = [(b"authorization", b"Bearer key"), *headers]
    sender = reader.authorization.sender_of(POLICY, request, peer_ip)
    assert isinstance(sender, Sender)
    context = reader.read(POLICY, request, sender, 0.0, inf, 600.0)
    assert isinstance(context, RequestContext)
    return context.facts.location


CODES = st.sampled_from(["DE", "de", "US", "US-CA", "JP", "XX", "T1", "ZZ", "", "DE,US"]).map(str.encode)
VALUES = CODES | st.binary(max_size=200)
HEADERS = st.lists(
    st.tuples(st.just(b"x-country"), VALUES)
    | st.tuples(st.just(b"x-forwarded-for"), st.sampled_from([PROXY, *PLACES]).map(str.encode) | VALUES)
    | st.tuples(st.sampled_from([b"x-real-ip", b"forwarded", b"cf-ipcountry", b"connection"]), VALUES),
    max_size=5,
)
ASKED = st.lists(st.tuples(st.sampled_from([PROXY, *PLACES]), HEADERS), min_size=1, max_size=8)


@given(asked=ASKED)
def test_only_a_trusted_proxy_sets_the_location(
    locator: Locator, asked: list[tuple[str, list[tuple[bytes, bytes]]]]
) -> None:
    config = cast(ActiveConfig, SimpleNamespace(policy=POLICY, tenants=TenantIndex(), issuers=None))
    authorization = Authorization("de-1", config, locator, equal_budgets("de-1"))
    demand = DemandMeter(0.0)
    reader = ClientRequestReader(authorization, CostEstimator(), KnownObjects(), demand, Random(1))
    for peer_ip, headers in asked:
        location = place(reader, peer_ip, headers)
        words = [value for name, value in headers if name == b"x-country"]
        if peer_ip != PROXY:
            assert location == Location(PLACES[peer_ip])
        elif not words:
            assert location.country in PLACES.values()
        elif len(words) > 1:
            assert location == NOWHERE
        elif location != NOWHERE:
            assert location.country in COUNTRIES
            said = "-".join(part for part in (location.country, location.subdivision) if part)
            assert words[0].decode().upper() == said
        else:
            assert words[0].decode("latin-1").upper() not in COUNTRIES
