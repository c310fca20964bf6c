"""The price of a GPU hour follows the local clock of its region."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.policy.gpu_price import gpu_price
from tests.support.paths import POLICIES

FILES = read_folder(POLICIES / "examples" / "spillover")
HOURS = """price_time_zone: Europe/Berlin
price_hours:
  - {days: [saturday, sunday], cost_per_gpu_hour: 0.5}
  - {from_hour: 22, to_hour: 6, cost_per_gpu_hour: 0.7}
"""
MODEL = "llama-3.1-8b"
SPOT = f"""price_time_zone: Europe/Berlin
spot:
  - models: [{MODEL}]
    cost_per_gpu_hour: 0.4
    price_hours: [{{from_hour: 8, to_hour: 20, cost_per_gpu_hour: 0.9}}]
"""
(FILE,) = [name for name, text in FILES.items() if "kind: Region" in text]


def priced(hours: str) -> dict[str, str]:
    return {**FILES, FILE: FILES[FILE].replace("kind: Region\n", f"kind: Region\n{hours}", 1)}


@pytest.mark.parametrize(
    ("at", "price"),
    [
        ("2026-12-01T12:00", None),
        ("2026-12-01T20:59", None),  # a Tuesday; 21:59 in Berlin
        ("2026-12-01T21:00", 0.7),
        ("2026-12-02T04:59", 0.7),
        ("2026-12-02T05:00", None),
        ("2026-12-04T23:00", 0.5),  # Saturday 0:00 in Berlin
        ("2026-12-06T22:59", 0.5),
        ("2026-12-06T23:00", 0.7),
        ("2026-07-01T20:00", 0.7),  # summer time: 22:00 in Berlin
        ("2026-07-01T19:59", None),
    ],
)
def test_the_first_hours_that_cover_the_local_time_apply(at: str, price: float | None) -> None:
    policy, usual = compile_bundle(priced(HOURS)), compile_bundle(FILES)
    (region,) = [region for region in policy.regions.values() if region.price_hours]
    now = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
    assert gpu_price(policy, region.name, MODEL, now) == (price or region.cost_per_gpu_hour)
    assert gpu_price(usual, region.name, MODEL, now) == region.cost_per_gpu_hour


def test_spot_capacity_has_prices_of_its_own_by_the_clock_of_its_region() -> None:
    policy, usual = compile_bundle(priced(SPOT)), compile_bundle(FILES)
    (region,) = [region for region in policy.regions.values() if region.spot]
    spot = region.spot_of(MODEL)
    assert spot is not None
    assert region.spot_of("another") is None
    for hour, price in (("06:59", 0.4), ("07:00", 0.9), ("18:59", 0.9), ("19:00", 0.4)):  # winter time: UTC+1
        now = datetime.fromisoformat(f"2026-12-01T{hour}").replace(tzinfo=UTC).timestamp()
        assert gpu_price(policy, region.name, MODEL, now) == price, hour
        assert gpu_price(policy, region.name, "another", now) == region.cost_per_gpu_hour
        assert gpu_price(usual, region.name, MODEL, now) == region.cost_per_gpu_hour


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        (f"[{MODEL}]", "[unknown]", "spot[0].models[0]: "),
        ("spot:\n", f"spot:\n  - {{models: [{MODEL}], cost_per_gpu_hour: 1}}\n", "spot names a model twice"),
        ("    price_hours: [{from_hour: 8, to_hour: 20, cost_per_gpu_hour: 0.9}]\n", "", "without price_hours"),
        ("cost_per_gpu_hour: 0.4", "cost_per_gpu_hour: -1", "spot[0].cost_per_gpu_hour: "),
    ],
)
def test_invalid_spot_capacity_is_refused_with_its_field(old: str, new: str, error: str) -> None:
    assert old in SPOT
    with pytest.raises(PolicyRefused) as raised:
        compile_bundle(priced(SPOT.replace(old, new)))
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("Europe/Berlin", "Europe/Nowhere", "price_time_zone: there is no time zone Europe/Nowhere"),
        ("from_hour: 22", "from_hour: 24", "from_hour: "),
        ("saturday", "caturday", "price_hours[0].days[0]: "),
        ("cost_per_gpu_hour: 0.7", "cost_per_gpu_hour: -1", "price_hours[1].cost_per_gpu_hour: "),
        (HOURS[HOURS.index("price_hours") :], "", "price_time_zone without price_hours"),
    ],
)
def test_invalid_prices_are_refused_with_their_field(old: str, new: str, error: str) -> None:
    with pytest.raises(PolicyRefused) as raised:
        compile_bundle(priced(HOURS.replace(old, new)))
    assert error in str(raised.value)
