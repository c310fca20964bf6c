"""Receives any exchanges of budgets of an agent.

The input is one exchange a line, as JSON or (if a line does not begin with `{`) as MessagePack. Property: each is
accepted, or refused by the decoder or as stale; and whatever was accepted, every amount that the leader has is finite,
and no lease grants more than the budget.
"""

from __future__ import annotations

from math import isfinite

import msgspec

from penstock.policy.kinds.budgets import Budget, BudgetUnit
from penstock.tenancy.budget_lease import BudgetKey
from penstock.tenancy.fleet_budgets import FleetBudgets, StaleExchange
from penstock.wire.budget_exchange import ExchangeRequest, requests

WORDS = (
    *(b'"agent":"a"', b'"region":"eu"', b'"epoch":1', b'"number":1', b'"answered":1', b'"leader":1', b'"uses":['),
    *(b'[["team","","requests_per_minute",""],1,1.0,0.0,5.0]', b'[["team","","money_per_day",""],1,1.0,0.0,5.0]'),
    *(b'[["team","","concurrent_requests","eu"],1,1,0,5]', b"1e308", b"-1", b"18446744073709551615", b"null", b"\n{"),
)

_BUDGETS = {unit: Budget(unit, 60.0) for unit in BudgetUnit}
_json = msgspec.json.Decoder(ExchangeRequest)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    fleet = FleetBudgets(1, _limits, 0.0)
    fleet.set_agents({"eu/a": "eu", "eu/b": "eu"}, 0.0)
    for number, line in enumerate(data.split(b"\n")[:20]):
        now = number * 1.0
        try:
            request = _json.decode(line) if line.startswith(b"{") else requests.decode(line)
            fleet.receive(request, now, 1.8e9 + now)
            answer = fleet.answer(request.sender, request.number, now, 1.8e9 + now)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, StaleExchange):
            continue
        assert all(0.0 <= lease.amount <= 121.0 and isfinite(lease.keep) for lease in answer.leases)
        fleet.tick(now, 1.8e9 + now)
    for budget in fleet.budgets.values():
        assert isfinite(budget.available)
        assert isfinite(budget.held)


def _limits(key: BudgetKey, tier: str) -> Budget | None:
    return _BUDGETS[key.unit] if key.tenant == "team" else None
