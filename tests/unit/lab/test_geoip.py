"""Client sites and GeoIP databases: written ones are read back, real ones have sites, damaged ones are refused."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path
from random import Random

import geoip2.database
import pytest

from lab import geoip
from lab.geoip import SITES, GeoDatabaseError, sites_from_database, write_geoip
from tests.support.paths import SHARED_DATA

REAL = SHARED_DATA / "geoip"
needs_real_databases = pytest.mark.skipif(
    not REAL.is_dir(), reason="the real databases are not at ../shared/data/geoip"
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("geoip") / "lab.mmdb"
    write_geoip(path)
    return path


def test_sites_are_in_many_countries_with_a_prefix_each() -> None:
    countries = {site.country for site in SITES}
    assert len(countries) >= 15
    assert countries >= {"DE", "ES", "FR", "GB", "US", "JP", "CH", "NO", "BR", "IN", "AU"}
    networks = [ip_network(site.network) for site in SITES]
    assert all(network.subnet_of(ip_network("198.18.0.0/15")) for network in networks)  # type: ignore[arg-type]
    assert len(set(networks)) == len({site.name for site in SITES}) == len(SITES)


def test_the_written_database_locates_every_site(ours: Path) -> None:
    with geoip2.database.Reader(str(ours)) as reader:
        for site in SITES:
            found = reader.city(site.address(Random(1)))
            assert found.country.iso_code == site.country
            assert (found.location.latitude, found.location.longitude) == (
                site.latitude_deg,
                site.longitude_deg,
            )
            assert found.subdivisions.most_specific.iso_code == (site.subdivision or None)
        with pytest.raises(geoip2.errors.AddressNotFoundError):
            reader.city("198.18.0.1")


def test_addresses_are_drawn_from_the_whole_prefix() -> None:
    drawn = {SITES[0].address(Random(seed)) for seed in range(50)}
    assert len(drawn) > 30
    assert all(ip_address(address) in ip_network(SITES[0].network) for address in drawn)


def test_a_database_yields_a_site_in_each_country(ours: Path) -> None:
    sites = sites_from_database(ours, Random(1))
    assert {site.country for site in sites} == {site.country for site in SITES}
    by_network = {site.network: site for site in SITES}
    for site in sites:
        table = by_network[site.network]
        assert (site.country, site.latitude_deg, site.city) == (table.country, table.latitude_deg, table.city)
    assert (sites[0].country, sites[0].share) == ("US", pytest.approx(2.2))


def test_a_large_database_is_sampled(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(geoip, "MAX_NETWORKS_READ_WHOLE", 10)
    monkeypatch.setattr(geoip, "SAMPLES", 1_000)
    monkeypatch.setattr(geoip, "IPv4Address", lambda number: ip_address(f"198.18.{number % 23}.{number % 256}"))
    sites = sites_from_database(ours, Random(1))
    assert len(sites) == len({site.country for site in SITES})
    assert all(ip_network(site.network).prefixlen == 24 for site in sites)


def test_refuses_what_is_missing_or_no_database(tmp_path: Path) -> None:
    empty, text = tmp_path / "empty.mmdb", tmp_path / "text.mmdb"
    empty.write_bytes(b"")
    text.write_text("not a database at all")
    for path, expected_message in [
        (tmp_path / "absent.mmdb", "No such file or directory"),
        (tmp_path, "not a file"),
        (empty, "not a sound MaxMind DB"),
        (text, "not a sound MaxMind DB"),
    ]:
        with pytest.raises(GeoDatabaseError, match=expected_message) as caught:
            sites_from_database(path, Random(1))
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_yields_sites_or_a_one_line_error(ours: Path, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    damaged = bytearray(ours.read_bytes())
    for _ in range(rng.choice([1, 5, 50])):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    path = tmp_path / "damaged.mmdb"
    path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
    try:
        message = f"{path}: {len(sites_from_database(path, rng))} sites"
    except GeoDatabaseError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


@needs_real_databases
def test_a_real_city_database_gives_sites_that_it_locates_itself() -> None:
    path = REAL / "GeoIP2-City-Test.mmdb"
    sites = sites_from_database(path, Random(2), max_sites=40)
    assert len(sites) == len({site.country for site in sites}) == 40
    with geoip2.database.Reader(str(path)) as reader:
        for site in sites:
            found = reader.city(site.address(Random(3)))
            assert found.country.iso_code == site.country
            assert found.location.latitude == pytest.approx(site.latitude_deg)
    assert len(sites_from_database(path, Random(2))) == 24


@needs_real_databases
@pytest.mark.parametrize(
    ("name", "expected_message"),
    [
        ("GeoIP2-City-Test-Broken-Double-Format.mmdb", "not a sound MaxMind DB"),
        ("GeoIP2-City-Test-Invalid-Node-Count.mmdb", "not a sound MaxMind DB"),
        ("GeoIP2-City-Test.json", "not a sound MaxMind DB"),
        ("libmaxminddb-corrupt-search-tree.mmdb", "no network has both"),
        ("GeoIP2-Country-Test.mmdb", "give a City database"),
        ("GeoLite2-ASN-Test.mmdb", "give a City database"),
    ],
)
def test_real_databases_without_locations_are_refused(name: str, expected_message: str) -> None:
    with pytest.raises(GeoDatabaseError, match=expected_message) as caught:
        sites_from_database(REAL / name, Random(1))
    assert "\n" not in str(caught.value)
