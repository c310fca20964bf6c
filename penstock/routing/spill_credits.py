"""Spill credits: headroom that a receiver has granted to one origin, so that nobody is pushed more than they offered.

A receiver's unexpired grants never sum to more than the headroom it had when granting. A grant replaces the one
before it and dies soon, so a lost or dead origin gives its credits back by doing nothing.
"""

from __future__ import annotations

from math import ceil

import msgspec

MAX_WANTED = 10_000
"""No origin asks one receiver for more credits than this at once."""


class Credit(msgspec.Struct, frozen=True):
    """Some requests that one origin may send beyond the plan, for a while."""

    requests: int
    expires_at: float
    """In the holder's own clock (s); only durations cross the wire."""


class Grants(msgspec.Struct, frozen=True):
    """What one receiver has granted for one model, by origin."""

    by_origin: dict[str, Credit] = {}

    def outstanding(self, now: float, besides: str | None = None) -> int:
        """Requests that origins (all but `besides`) may still send."""
        return sum(
            credit.requests
            for origin, credit in self.by_origin.items()
            if origin != besides and credit.expires_at > now
        )


def grant(grants: Grants, origin: str, wanted: int, headroom: int, now: float, ttl_s: float) -> tuple[Grants, int]:
    """Answer an origin that asks for `wanted` credits; returns the new state and how many it gets.

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
    """What one of a region's `agents` may grant of the headroom that all of them see; the parts sum to it.

    Args:
        rank: the agent's place (0-based) in an order that all of them agree on.
    """
    whole, rest = divmod(max(0, headroom), max(1, agents))
    return whole + (1 if rank < rest else 0)


def wanted(
    in_flight: int, slots: int, target_utilisation: float, service_s: float, requests_per_s: float, ttl_s: float
) -> int:
    """How many credits an origin asks each receiver for: by how much it will be past its target when they expire.

    An origin that stays below its target asks for none, so that it does not hold what others need.

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


class Wallet(msgspec.Struct, frozen=True):
    """What one origin holds, by (receiver, model)."""

    credits: dict[tuple[str, str], Credit] = {}

    def available(self, region: str, model: str, now: float) -> int:
        """Credits that may be spent now."""
        credit = self.credits.get((region, model))
        return credit.requests if credit is not None and credit.expires_at > now else 0

    def received(self, region: str, model: str, requests: int, now: float, ttl_s: float) -> Wallet:
        """The receiver's newest word replaces what it said before."""
        return Wallet({**self.credits, (region, model): Credit(requests, now + ttl_s)})

    def spent(self, region: str, model: str) -> Wallet:
        """One credit fewer.

        Raises:
            KeyError: nothing was ever granted, so the caller did not ask `available` first.
        """
        credit = self.credits[region, model]
        return Wallet({**self.credits, (region, model): Credit(credit.requests - 1, credit.expires_at)})
