"""Prices of requests: the list in force, and the price of one request."""

from __future__ import annotations

from math import inf
from typing import Final

from penstock.policy.adapter_patterns import matches
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.policy import Policy

MAX_NAMES: Final = 4096
"""Maximum number of names of models and adapters whose price is kept."""

_TOKEN: Final = CostUnit.TOKEN
"""A module constant, since in Python 3.11 access to an enum member through its class is a function call."""


class PriceList:
    """The prices that a policy has in force at one time, by the name of a model or adapter."""

    __slots__ = ("_by_name", "_prices", "valid_until")

    def __init__(self, policy: Policy, now: float) -> None:
        """Use the prices of `policy` at `now` (Unix time, s)."""
        lists: tuple[Prices, ...] = policy.prices or ()
        self._prices = prices_at(policy, now)
        self.valid_until: float = min((each.valid_from for each in lists if each.valid_from > now), default=inf)
        """Unix time (s) from which the next list is in force."""
        self._by_name: dict[str, ModelPrice | None] = {}

    def of(self, name: str) -> ModelPrice | None:
        """Return the price of a model or adapter; None if its requests cost nothing."""
        if name in self._by_name:
            return self._by_name[name]
        found = None
        if self._prices is not None:
            found = next((price for price in self._prices.models if matches(price.model, name)), None)
        # Names of adapters come from clients.
        if len(self._by_name) < MAX_NAMES:
            self._by_name[name] = found
        return found


def prices_at(policy: Policy, now: float) -> Prices | None:
    """Return the price list in force at `now` (Unix time, s); None before the first one."""
    return max(
        (each for each in policy.prices or () if each.valid_from <= now),
        key=lambda each: each.valid_from,
        default=None,
    )


def price_of(policy: Policy, name: str, now: float, tokens: tuple[float, float, float], units: float = 0.0) -> float:
    """Return what a tenant pays for a request; 0 without a price. See `PriceList` for many requests.

    Args:
        name: of the model or adapter.
        now: Unix time (s) of the end of the request.
        tokens: of the prompt, of the prompt from a cache, and of the answer.
        units: see `cost_units`.
    """
    price = PriceList(policy, now).of(name)
    return 0.0 if price is None else price.amount(*tokens, units=units)


def cost_units(cost: Cost, decode_s: float) -> float:
    """Return the units that a request has by its estimate; 0 for models whose unit of cost is the token.

    Args:
        decode_s: the estimated work of the output (s, reference).
    """
    return 0.0 if cost.unit is _TOKEN else decode_s / cost.output_unit_s
