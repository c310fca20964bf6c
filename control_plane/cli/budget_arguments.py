"""Budgets on the command line: `--budget tokens_per_minute=200000@region`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from adapters.error_text import suggest
from control_plane.cli.error_output import UsageFault
from penstock.policy.kinds.budgets import Budget, BudgetScope, BudgetUnit

BudgetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        help="Limit as UNIT=LIMIT, of the fleet, or UNIT=LIMIT@region, of each region; can be repeated. Units: "
        + ", ".join(BudgetUnit)
        + ".",
        show_default=False,
    ),
]


def budget_bodies(given: Iterable[str]) -> list[dict[str, Any]]:
    """Return budgets as the body of a request.

    Raises:
        UsageFault: a budget is malformed.
    """
    return [_body(text) for text in given]


def _body(text: str) -> dict[str, Any]:
    unit, _, rest = text.partition("=")
    limit, _, scope = rest.partition("@")
    if not limit:
        raise UsageFault(f"--budget {text}: write UNIT=LIMIT or UNIT=LIMIT@region, such as requests_per_minute=600")
    if unit not in list(BudgetUnit):
        raise UsageFault(f"--budget {text}: there is no unit {unit!r}; {suggest(unit, BudgetUnit, '')}")
    if scope not in ("", *BudgetScope):
        raise UsageFault(f"--budget {text}: write region or fleet after the @, or leave it out")
    try:
        amount = float(limit)
    except ValueError:
        raise UsageFault(f"--budget {text}: {limit!r} is no number") from None
    return {"unit": unit, "limit": amount, "scope": scope or BudgetScope.FLEET.value}


def budget_texts(budgets: Iterable[Budget]) -> list[str]:
    """Return budgets as they are written on the command line."""
    return [
        f"{budget.unit.value}={budget.limit:.12g}{'@region' if budget.scope is BudgetScope.REGION else ''}"
        for budget in budgets
    ]
