"""Prices of requests: the list in force, and the price of one request."""

from __future__ import annotations

from math import inf
from typing import Final

from penstock.policy.adapter_patterns import matches
from penstock.policy.kinds.billing import ModelPrice, Prices
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.kinds.tenants import BATCH_PRIORITY
from penstock.policy.policy import Policy

MAX_NAMES: Final = 4096
"""Maximum number of names of models and adapters whose price is kept."""

_BATCH: Final = BATCH_PRIORITY
_TOKEN: Final = CostUnit.TOKEN
"""A module constant, since in Python 3.11 access to an enum member through its class is a function call."""


class Rate:
    """The price of one model, as it is computed for each request."""

    def __init__(self, price: ModelPrice, part: float = 1.0) -> None:
        """Use a part (0-1) of a price."""
        self.input_token: float = price.per_million_input_tokens * part / 1e6
        cached = price.per_million_cached_tokens
        self.cached_token: float = self.input_token if cached is None else cached * part / 1e6
        self.output_token: float = price.per_million_output_tokens * part / 1e6
        self.request: float = price.per_request * part
        self.unit: float = price.per_unit * part

    def amount(self, input_tokens: float, cached_tokens: float, output_tokens: float, units: float = 0.0) -> float:
        """Return what the tenant pays for a request.

        Args:
            input_tokens: tokens of the prompt, those of a cache included.
            units: see `cost_units`.
        """
        return (
            self.input_token * (input_tokens - cached_tokens)
            + self.cached_token * cached_tokens
            + self.output_token * output_tokens
            + self.request
            + self.unit * units
        )


class PriceList:
    """The prices that a policy has in force at one time, by the name of a model or adapter."""

    def __init__(self, policy: Policy, now: float) -> None:
        """Use the prices of `policy` at `now` (Unix time, s)."""
        lists: tuple[Prices, ...] = policy.prices or ()
        self._prices = prices_at(policy, now)
        self._valid_from = -inf if self._prices is None else self._prices.valid_from
        self._valid_until = min((each.valid_from for each in lists if each.valid_from > now), default=inf)
        self._by_name: dict[str, Rate | None] = {}
        self._batch_by_name: dict[str, Rate | None] = {}

    def is_in_force(self, now: float) -> bool:
        """Whether these are the prices at `now` (Unix time, s), also after a clock was set back."""
        return self._valid_from <= now < self._valid_until

    def of(self, name: str, priority: int = 0) -> Rate | None:
        """Return the price of a model or adapter for a request of a priority; None if it costs nothing."""
        is_batch = priority == _BATCH
        by_name = self._batch_by_name if is_batch else self._by_name
        known = by_name.get(name)
        if known is not None or name in by_name:
            return known
        found: Rate | None = None
        if self._prices is not None:
            for price in self._prices.models:
                if matches(price.model, name):
                    found = Rate(price, self._prices.batch_percent / 100.0 if is_batch else 1.0)
                    break
        # Names of adapters come from clients.
        if len(by_name) < MAX_NAMES:
            by_name[name] = found
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
    rate = PriceList(policy, now).of(name)
    return 0.0 if rate is None else rate.amount(tokens[0], tokens[1], tokens[2], units)


def cost_units(cost: Cost, decode_s: float) -> float:
    """Return the units that a request has by its estimate; 0 for models whose unit of cost is the token.

    Args:
        decode_s: the estimated work of the output (s, reference).
    """
    return 0.0 if cost.unit is _TOKEN else decode_s / cost.output_unit_s
