"""Spill credits: headroom that a receiver has granted to one origin, so that nobody is pushed more than they offered.

A receiver's unexpired grants never sum to more than the headroom it had when granting. A grant replaces the one
before it and dies soon, so a lost or dead origin gives its credits back by doing nothing.
"""

from __future__ import annotations

import msgspec


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
