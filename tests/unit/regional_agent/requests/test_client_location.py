from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import MappingProxyType

import pytest
from mmdb_writer import MMDBWriter
from netaddr import IPSet

from adapters.geoip import BadGeoDatabase
from penstock.policy.geography import NOWHERE, Location
from regional_agent.requests.client_location import MAX_CHAIN_BYTES, Locator, parse_location
from tests.support.paths import SHARED_DATA

PROXIES = (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
REAL = SHARED_DATA / "geoip"


def write(path: Path, kind: str = "GeoIP2-City", more: Mapping[str, str] = MappingProxyType({})) -> Path:
    writer = MMDBWriter(ip_version=6, ipv4_compatible=True, database_type=kind)
    berlin = {"country": {"iso_code": "DE"}, "location": {"latitude": 52.5, "longitude": 13.4}}
    writer.insert_network(IPSet(["203.0.113.0/25"]), {**berlin, "subdivisions": [{"iso_code": "BE"}]})
    writer.insert_network(IPSet(["203.0.113.128/25"]), {"country": {"iso_code": "FR"}})
    writer.insert_network(IPSet(["198.51.0.0/16"]), {"country": {"iso_code": "JP"}})
    writer.insert_network(IPSet(["192.0.2.0/24"]), {"registered_country": {"iso_code": "US"}})
    writer.insert_network(IPSet(["2001:db8::/32"]), {"country": {"iso_code": "ES"}})
    for number, (network, code) in enumerate(more.items()):
        # Neighbours with equal records are one network of the database.
        where = {"location": {"latitude": 1.0 + number, "longitude": 1.0}}
        writer.insert_network(IPSet([network]), {"country": {"iso_code": code}, **where})
    writer.to_db_file(str(path))
    return path


@pytest.fixture
def locator(tmp_path: Path) -> Locator:
    return Locator(write(tmp_path / "geo.mmdb"), PROXIES)


def country(locator: Locator, peer: str, *forwarded: bytes) -> str | None:
    return locator.locate_client(peer, forwarded, []).country


def test_locates_by_the_connection_where_no_proxy_stands_before_it(locator: Locator) -> None:
    assert locator.locate_client("203.0.113.9", [], []) == Location("DE", "BE", 52.5, 13.4)
    assert country(locator, "2001:db8::1") == "ES"
    assert country(locator, "::ffff:198.51.100.7") == "JP"


def test_a_client_cannot_forge_where_it_is(locator: Locator) -> None:
    assert country(locator, "203.0.113.9", b"198.51.100.7") == "DE"
    assert country(locator, "10.0.0.1", b"198.51.100.7, 203.0.113.9") == "DE"
    assert country(locator, "10.0.0.1", b"198.51.100.7", b"203.0.113.9, 10.9.9.9") == "DE"


def test_walks_through_our_own_proxies_only(locator: Locator) -> None:
    assert country(locator, "10.0.0.1", b"198.51.100.7, 10.2.2.2,fd00::5") == "JP"
    assert locator.client_address("10.0.0.1", [b"10.3.3.3, 10.2.2.2"]) == ip_address("10.3.3.3")
    assert locator.client_address("10.0.0.1", []) == ip_address("10.0.0.1")


@pytest.mark.parametrize("hop", [b"198.51.100.7:4711", b"[2001:db8::5]:443", b"[2001:db8::5]", b" 198.51.100.7 "])
def test_reads_addresses_as_proxies_write_them(locator: Locator, hop: bytes) -> None:
    assert country(locator, "10.0.0.1", hop) in ("JP", "ES")


@pytest.mark.parametrize(
    "chain", [b"unknown", b"", b"198.51.100.7, ", b"198.51.100.7, _hidden", b"x" * (MAX_CHAIN_BYTES + 1)]
)
def test_a_chain_that_is_no_chain_is_nowhere_rather_than_the_proxy(locator: Locator, chain: bytes) -> None:
    assert locator.locate_client("10.0.0.1", [chain], []) == NOWHERE


def test_neighbours_share_a_cached_location_only_within_a_network_of_the_database(locator: Locator) -> None:
    for _ in range(2):
        assert country(locator, "203.0.113.1") == "DE"
        assert country(locator, "203.0.113.200") == "FR"
        assert country(locator, "198.51.100.1") == "JP"
        assert country(locator, "198.51.100.254") == "JP"


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        ("203.0.113.0/25", "DE"),
        ("203.0.113.1/32", "DE"),
        ("203.0.113.128/26", "FR"),
        ("198.51.0.0/16", "JP"),
        ("203.0.113.0/24", None),  # half of it is in France
        ("198.18.0.0/24", None),  # its ends are in Spain, a part of it is in the US
        ("198.18.1.0/24", "ES"),  # in three parts
        ("198.18.2.0/24", None),  # in too many
        ("8.8.8.0/24", None),
        ("2001:db8::/56", "ES"),
        ("2001:db8::/31", None),
    ],
)
def test_a_network_has_a_location_if_all_of_it_is_there(tmp_path: Path, network: str, expected: str | None) -> None:
    parts = {"198.18.0.96/27": "US", "198.18.2.0/24": "ES"}
    parts |= {f"198.18.2.{first}/32": "ES" for first in range(0, 256, 8)}
    located = Locator(write(tmp_path / "geo.mmdb", more={"198.18.0.0/23": "ES", **parts}), PROXIES)
    for _ in range(2):
        assert located.locate_network(ip_network(network)).country == expected
    assert Locator(None, PROXIES).locate_network(ip_network(network)) == NOWHERE


def test_an_address_without_an_entry_has_no_location(locator: Locator) -> None:
    assert locator.locate_client("8.8.8.8", [], []) == NOWHERE
    assert locator.locate_client("192.0.2.1", [], []) == NOWHERE
    assert locator.locate_client("not an address", [], []) == NOWHERE


def test_a_country_database_will_do(tmp_path: Path) -> None:
    locator = Locator(write(tmp_path / "geo.mmdb", "GeoLite2-Country"), ())
    assert locator.locate_client("203.0.113.9", [], []) == Location("DE")


def test_without_a_database_everybody_is_nowhere() -> None:
    assert Locator(None, PROXIES).locate_client("203.0.113.9", [], []) == NOWHERE


def test_an_unusable_database_is_named(tmp_path: Path) -> None:
    text = tmp_path / "text.mmdb"
    text.write_text("this is not a database")
    for path, message in (
        (tmp_path / "missing.mmdb", "cannot read"),
        (text, "not a MaxMind database"),
        (write(tmp_path / "asn.mmdb", "GeoLite2-ASN"), "has no countries"),
    ):
        with pytest.raises(BadGeoDatabase, match=message) as caught:
            Locator(path, ())
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (b"DE", Location("DE")),
        (b"de", Location("DE")),
        (b"US-CA", Location("US", "CA")),
        (b"us-ca", Location("US", "CA")),
        (b"FR-75C", Location("FR", "75C")),
        (b"XK", Location("XK")),
    ],
)
def test_a_trusted_proxys_word_goes_before_the_database(locator: Locator, value: bytes, place: Location) -> None:
    assert parse_location(value) == place
    assert locator.locate_client("10.0.0.1", [b"198.51.100.7"], [value]) == place
    assert locator.locate_client("10.0.0.1", [b"no chain"], [value]) == place, "whatever clients write before it"
    assert country(locator, "10.0.0.1", b"198.51.100.7") == "JP", "nothing is said: the database, as ever"


@pytest.mark.parametrize("said", [[b"FR"], [b"XX"], [b"FR", b"FR"], [b""]])
def test_headers_of_other_senders_are_ignored_about_places(locator: Locator, said: list[bytes]) -> None:
    assert locator.locate_client("203.0.113.9", [], said) == Location("DE", "BE", 52.5, 13.4)
    assert locator.locate_client("203.0.113.9", [b"10.0.0.1"], said).country == "DE"


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"XX",
        b"ZZ",
        b"T1",
        b"UK",
        b"EU",
        b"A1",
        b"DEU",
        b"Germany",
        b"276",
        b"DE,FR",
        b"DE, DE",
        b"DE;q=1",
        b"DE-",
        b"DE-ABCD",
        b"US_CA",
        b"US-CA-LA",
        b"US-XX",
        b"us-zz",
        b"CA-\xe9",
        b"\xdf",
        b" DE",
        b"DE\n",
        b"null",
        b"?",
        b"D" * 10_000,
    ],
)
def test_an_unreadable_header_gives_no_location_instead_of_the_databases(locator: Locator, value: bytes) -> None:
    assert parse_location(value) == NOWHERE
    assert locator.locate_client("10.0.0.1", [b"198.51.100.7"], [value]) == NOWHERE


def test_two_words_are_none(locator: Locator) -> None:
    assert locator.locate_client("10.0.0.1", [b"198.51.100.7"], [b"DE", b"DE"]) == NOWHERE


@pytest.mark.skipif(not REAL.is_dir(), reason="no real MaxMind files beside the project")
def test_real_maxmind_files() -> None:
    city = Locator(REAL / "GeoIP2-City-Test.mmdb", ())
    assert city.locate_client("81.2.69.142", [], []).country == "GB"
    assert city.locate_client("2001:218::1", [], []).country == "JP"
    for damaged in ("GeoIP2-City-Test-Broken-Double-Format.mmdb", "GeoIP2-City-Test-Invalid-Node-Count.mmdb"):
        with pytest.raises(BadGeoDatabase, match="fetch"):
            Locator(REAL / damaged, ())


def test_a_database_of_ipv4_alone_is_valid_and_has_no_ipv6(tmp_path: Path) -> None:
    writer = MMDBWriter(ip_version=4, database_type="GeoLite2-City")
    writer.insert_network(IPSet(["198.18.0.0/24"]), {"country": {"iso_code": "DE"}})
    writer.to_db_file(str(tmp_path / "four.mmdb"))
    located = Locator(tmp_path / "four.mmdb", ())
    assert located.locate(ip_address("198.18.0.1")).country == "DE"
    assert located.locate(ip_address("2001:db8::1")) == NOWHERE
