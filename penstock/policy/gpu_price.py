"""The price of a GPU hour of a model in a region at a time: of spot capacity or of the region, and by `price_hours`."""

from __future__ import annotations

from typing import Final

from penstock.policy.kinds.regions import PriceHours, Weekday
from penstock.policy.policy import SECONDS_PER_HOUR, Policy
from penstock.policy.time_zone import local_s

HOURS_PER_DAY: Final = 24

STEP_S: Final = 900.0
"""Prices change at whole local hours; offsets of time zones are multiples of 15 minutes."""

_DAYS: Final = tuple(Weekday)
_EPOCH_DAY: Final = _DAYS.index(Weekday.THURSDAY)


def gpu_price(policy: Policy, region: str, model: str, now: float) -> float:
    """The price of a GPU hour of a model in a region of the policy at `now` (Unix time, s), in its currency."""
    at = policy.regions[region]
    found = at if not at.spot else at.spot_of(model) or at
    if not found.price_hours:
        return found.cost_per_gpu_hour
    zone = policy.time_zones.get(at.price_time_zone or "")
    hours = int((now if zone is None else local_s(zone, now)) // SECONDS_PER_HOUR)
    day, hour = divmod(hours, HOURS_PER_DAY)
    weekday = _DAYS[(day + _EPOCH_DAY) % len(_DAYS)]
    for priced in found.price_hours:
        if _covers(priced, weekday, hour):
            return priced.cost_per_gpu_hour
    return found.cost_per_gpu_hour


def _covers(priced: PriceHours, weekday: Weekday, hour: int) -> bool:
    if priced.days and weekday not in priced.days:
        return False
    if priced.from_hour < priced.to_hour:
        return priced.from_hour <= hour < priced.to_hour
    return hour >= priced.from_hour or hour < priced.to_hour
