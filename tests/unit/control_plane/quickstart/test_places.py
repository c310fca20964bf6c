"""Places of regions by country and time zone."""

from __future__ import annotations

import pytest

from control_plane.quickstart.places import FALLBACK, Place, UnknownPlace, place_named, place_of_machine, zones
from penstock.policy.geography import COUNTRIES


def test_a_country_or_a_time_zone_names_a_place() -> None:
    assert place_named("Europe/Berlin") == place_named("DE") == Place("DE", 52.5, 13.37)
    assert place_named("America/Sao_Paulo") == Place("BR", -23.53, -46.62)


def test_an_unknown_place_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UnknownPlace, match="did you mean Europe/Berlin"):
        place_named("Europe/Berln")
    with pytest.raises(UnknownPlace, match="write an ISO 3166-1 country code"):
        place_named("Germany")


def test_the_place_of_the_machine_is_that_of_its_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    assert place_of_machine().country == "JP"
    monkeypatch.setenv("TZ", "UTC")
    assert place_of_machine() == FALLBACK


def test_every_time_zone_has_valid_coordinates() -> None:
    for country in COUNTRIES & {place.country for place in zones().values()}:
        place = place_named(country)
        assert -90 <= place.latitude_deg <= 90
        assert -180 <= place.longitude_deg <= 180
