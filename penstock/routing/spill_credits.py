"""Spill credits: headroom that a receiving region grants to one origin, so that no region receives more spillover than
it granted.

The unexpired grants of a receiver never sum to more than its headroom at the time of granting. A grant replaces the
previous grant to the same origin and expires soon, so the credits of an unreachable origin become free without a
message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import NamedTuple

import msgspec

from penstock.fleet.expected_wait import headroom_slots
from penstock.fleet.slot_placement import SlotPlacement

MAX_WANTED = 10_000
"""Maximum number of credits that one origin requests from one receiver for one model."""

BATCH_RESERVE = 1
"""Slots of a region's headroom that batch credits leave to spillover of requests with a priority."""

ROUNDING = 1e-6
"""Added before a number of requests is rounded down, since rounding errors in sums of slots are smaller than this."""


class Credit(msgspec.Struct, frozen=True):
    """Requests that one origin may send beyond the plan until the credit expires."""

    requests: int
    expires_at: float
    """Expiry time (s) by the clock of the process that stores the credit; messages contain only durations."""


class Grants(msgspec.Struct, frozen=True):
    """The credits that one receiver has granted for one model, by origin."""

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
        headroom: number of requests (slots) that the receiver can accept now.
        ttl_s: lifetime of the credits, in seconds.
    """
    given = max(0, min(wanted, headroom - grants.outstanding(now, besides=origin)))
    alive = {name: credit for name, credit in grants.by_origin.items() if credit.expires_at > now}
    alive.pop(origin, None)
    if given:
        alive[origin] = Credit(given, now + ttl_s)
    return Grants(alive), given


class AgentRank(NamedTuple):
    """The position of one of a region's agents."""

    rank: int
    """0-based, in an order on which all agents agree."""
    agents: int
    """Number of agents of the region."""


class GroupLoad(NamedTuple):
    """The load of one capacity group of a region."""

    models: tuple[str, ...]
    in_flight: int
    """Requests of all models on the endpoints of the group."""
    slots: int
    """Concurrent requests that the ready endpoints of the group run."""


def shared_headroom(
    model: str,
    groups: Sequence[GroupLoad],
    waiting: Mapping[str, int],
    granted: Mapping[str, int],
    target_utilisation: float,
    agent: AgentRank,
) -> int:
    """The headroom of a model at one of a region's agents, less the credits granted for models that share its slots.

    Args:
        model: the model.
        groups: every capacity group of the models that share slots, groups of a single model included.
        waiting: requests that wait for a slot, by model.
        granted: credits that this agent has granted and that have not expired, by other model.
        target_utilisation: the part (0-1] of its slots that a group fills.
    """
    free = [float(headroom_slots(group.in_flight, group.slots, target_utilisation)) for group in groups]
    placement = _placement(groups, free)
    for name, count in waiting.items():
        placement.place(name, float(count))
    parts = [float(agent_part(int(placement.free(at) + ROUNDING), agent)) for at in range(len(groups))]
    placement = _placement(groups, parts)
    for name, count in granted.items():
        placement.place(name, float(count))
    return int(placement.place(model, sum(parts)) + ROUNDING)


def _placement(groups: Sequence[GroupLoad], free: Sequence[float]) -> SlotPlacement[str]:
    draws: dict[str, list[int]] = {}
    for at in sorted(range(len(groups)), key=lambda at: len(groups[at].models)):
        for model in groups[at].models:
            draws.setdefault(model, []).append(at)
    return SlotPlacement(free, draws)


def batch_headroom(headroom: int, granted: int, waiting: int) -> int:
    """The headroom that is left for batch credits: batch requests of other regions take only what all others leave.

    Args:
        headroom: that of the agent for batch requests, computed with BATCH_RESERVE requests more in flight.
        granted: unexpired credits of the agent for requests with a priority.
        waiting: batch requests that wait at the agent, which precede those of other regions.
    """
    return max(0, headroom - granted - waiting)


def agent_part(headroom: int, agent: AgentRank) -> int:
    """The part of the headroom that one of a region's agents may grant; the parts sum to the headroom."""
    whole, rest = divmod(max(0, headroom), max(1, agent.agents))
    return whole + (1 if agent.rank < rest else 0)


def wanted(
    in_flight: int, slots: int, target_utilisation: float, service_s: float, requests_per_s: float, ttl_s: float
) -> int:
    """The number of credits that an origin requests from each receiver: its excess over the target, now or at expiry.

    An origin that stays below its target requests no credits, so that other origins can hold them.

    Args:
        in_flight: requests on the origin's own pool now.
        slots: concurrent requests that the pool runs.
        service_s: mean time a request holds a slot, in seconds.
        requests_per_s: demand offered to the origin.
        ttl_s: lifetime of the credits, in seconds.
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
        """The held credits after a response of a receiver, whose grants replace all earlier grants of that receiver.

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
        """The held credits with one credit fewer.

        Raises:
            KeyError: the last response of the receiver granted no credit, so the caller did not check `available`
                first.
        """
        credit = self.credits[region, model]
        return HeldCredits({**self.credits, (region, model): Credit(credit.requests - 1, credit.expires_at)})
