"""Spill credits: headroom that a receiving region grants to one origin, so that no region receives more spillover than
it granted.

A receiver's unexpired grants never sum to more than its headroom at the time of granting. A grant replaces the previous
one to the same origin and expires soon, so a lost or dead origin returns its credits by doing nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

import msgspec

MAX_WANTED = 10_000
"""Credits that one origin requests from one receiver at most."""


class Credit(msgspec.Struct, frozen=True):
    """Requests that one origin may send beyond the plan until the credit expires."""

    requests: int
    expires_at: float
    """By the holder's own clock (s); only durations cross the wire."""


class Grants(msgspec.Struct, frozen=True):
    """What one receiver has granted for one model, by origin."""

    by_origin: dict[str, Credit] = {}

    def outstanding(self, now: float, besides: str | None = None) -> int:
        """Requests that origins (all except `besides`) may still send."""
        return sum(
            credit.requests
            for origin, credit in self.by_origin.items()
            if origin != besides and credit.expires_at > now
        )


def grant(grants: Grants, origin: str, wanted: int, headroom: int, now: float, ttl_s: float) -> tuple[Grants, int]:
    """Grant up to `wanted` credits to an origin; returns the new state and the number granted.

    Args:
        headroom: requests that the receiver could take now, in slots.
        ttl_s: how long the credits may be spent, in seconds.
    """
    given = max(0, min(wanted, headroom - grants.outstanding(now, besides=origin)))
    alive = {name: credit for name, credit in grants.by_origin.items() if credit.expires_at > now}
    alive.pop(origin, None)
    if given:
        alive[origin] = Credit(given, now + ttl_s)
    return Grants(alive), given


def fair_part(headroom: int, rank: int, agents: int) -> int:
    """The part of the headroom that one of a region's agents may grant; the parts sum to the headroom.

    Args:
        rank: the agent's position (0-based) in an order on which all agents agree.
    """
    whole, rest = divmod(max(0, headroom), max(1, agents))
    return whole + (1 if rank < rest else 0)


def wanted(
    in_flight: int, slots: int, target_utilisation: float, service_s: float, requests_per_s: float, ttl_s: float
) -> int:
    """How many credits an origin requests from each receiver: by how much it will exceed its target when they expire.

    An origin that stays below its target requests none, so that it does not hold credits that others need.

    Args:
        in_flight: requests on its own pool now.
        slots: what that pool runs at once.
        service_s: mean time a request holds a slot, in seconds.
        requests_per_s: demand offered to the origin.
        ttl_s: how long credits last, in seconds.
    """
    served_per_s = min(in_flight, slots) / max(service_s, 1e-6)
    then = in_flight + (requests_per_s - served_per_s) * ttl_s
    return max(0, min(MAX_WANTED, ceil(max(in_flight, then) - slots * target_utilisation)))


class HeldCredits(msgspec.Struct, frozen=True):
    """The credits of one origin, by (receiver, model)."""

    credits: dict[tuple[str, str], Credit] = {}

    def available(self, region: str, model: str, now: float) -> int:
        """Credits that may be spent now."""
        credit = self.credits.get((region, model))
        return credit.requests if credit is not None and credit.expires_at > now else 0

    def received(self, region: str, granted: Mapping[str, int], now: float, ttl_s: float) -> HeldCredits:
        """The held_credits after a response of a receiver. Its grants replace all earlier ones of that receiver.

        Args:
            granted: number of credits by model.
            now: by the holder's clock, in seconds.
            ttl_s: lifetime of the credits, in seconds.
        """
        others = {key: credit for key, credit in self.credits.items() if key[0] != region}
        return HeldCredits(
            others | {(region, model): Credit(count, now + ttl_s) for model, count in granted.items() if count}
        )

    def spent(self, region: str, model: str) -> HeldCredits:
        """The held_credits with one credit fewer.

        Raises:
            KeyError: no credit was ever granted, so the caller did not check `available` first.
        """
        credit = self.credits[region, model]
        return HeldCredits({**self.credits, (region, model): Credit(credit.requests - 1, credit.expires_at)})
