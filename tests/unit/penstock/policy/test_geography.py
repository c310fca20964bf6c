"""Distances on Earth, the round trips that they let expect, spillover orders as distances, and codes of countries."""

from __future__ import annotations

from math import asin, cos, dist, radians, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.policy.geography import country_error, estimated_rtt_ms, great_circle_km, lifted_ms

LATITUDES = st.floats(-90.0, 90.0)
LONGITUDES = st.floats(-180.0, 180.0)


@pytest.mark.parametrize(
    ("a", "b", "km"),
    [
        ((50.11, 8.68), (50.11, 8.68), 0.0),
        ((0.0, 0.0), (0.0, 180.0), 20_015.1),
        ((90.0, 0.0), (0.0, 77.0), 10_007.6),
        ((0.0, 179.5), (0.0, -179.5), 111.2),
    ],
)
def test_great_circles(a: tuple[float, float], b: tuple[float, float], km: float) -> None:
    assert great_circle_km(*a, *b) == pytest.approx(km, rel=1e-4, abs=0.1)


@given(LATITUDES, LONGITUDES, LATITUDES, LONGITUDES)
def test_a_distance_is_that_of_the_angle_between_two_vectors(
    a_lat: float, a_lon: float, b_lat: float, b_lon: float
) -> None:
    vectors = [
        (cos(radians(lat)) * cos(radians(lon)), cos(radians(lat)) * sin(radians(lon)), sin(radians(lat)))
        for lat, lon in ((a_lat, a_lon), (b_lat, b_lon))
    ]
    angle = 2.0 * asin(min(1.0, dist(*vectors) / 2.0))
    assert great_circle_km(a_lat, a_lon, b_lat, b_lon) == pytest.approx(6_371.0 * angle, rel=1e-4, abs=1.0)


def test_a_round_trip_is_stretched_fibre_there_and_back_and_a_millisecond_of_equipment() -> None:
    # 102 ms for 10,200 km of cable there and 10,200 km back, at 200 km/ms less 2 %.
    assert estimated_rtt_ms(0.0) == 1.0
    assert estimated_rtt_ms(6_375.0) == pytest.approx(101.0)


def test_a_spillover_order_goes_before_distances_and_bias() -> None:
    plain_ms = {"home": 0.0, "near": 10.0, "far": 200.0, "biased": 9000.0}
    lifted = lifted_ms(plain_ms, "home", ("far", "home", "gone", "near"))
    assert lifted == {"home": 0.0, "far": 1000.0, "near": 2000.0, "biased": 12_000.0}
    # A distance that is larger than the step remains, and those after it follow.
    lifted = lifted_ms(plain_ms, "home", ("biased", "near"))
    assert lifted == {"home": 0.0, "biased": 9000.0, "near": 10_000.0, "far": 11_200.0}


def test_a_code_is_valid_or_the_error_says_what_to_write() -> None:
    assert country_error("DE") is country_error("XK") is None
    no_country = "is no country of ISO 3166-1 (alpha-2, such as DE);"
    assert country_error("de") == f"'de' {no_country} write DE"
    assert country_error("UK") == f"'UK' {no_country} leave it out where it is unknown"
    assert country_error("DEU") == f"'DEU' {no_country} leave it out where it is unknown"
