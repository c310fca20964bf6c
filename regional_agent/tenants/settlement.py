"""Settles what a request reserved of budgets, by its account."""

from __future__ import annotations

import structlog

from penstock.accounts.account import SWITCHING_PROTOCOLS, Account
from penstock.accounts.outcome_rules import Outcome
from penstock.cost.gpu_time import gpu_time_s, gpus_of
from penstock.tenancy.amounts import Amounts
from penstock.tenancy.budget_reservations import BudgetReservation
from penstock.tenancy.request_amounts import used_amounts
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.tenants.tenant_budgets import TenantBudgets

log = structlog.get_logger()


def settle(budgets: TenantBudgets, context: RequestContext, attempt: Attempt | None, account: Account) -> None:
    """Replace the reservation of a request that ended by what it used. A second call does nothing.

    Args:
        attempt: the last attempt, whose slot has been released; None if no target has the request.
    """
    reservation = context.reservation
    if reservation is None:
        return
    started = attempt is not None or account.first_byte_at is not None
    amounts = Amounts(1.0 if started else 0.0)
    if reservation.budgets.needs_estimate:
        try:
            amounts = _used(budgets, reservation, context, attempt, account)
        except Exception:
            # What a request holds is released whatever else fails.
            log.exception("the use of budgets is not known", model=context.model)
    reservation.settle(amounts, account.ended_at, is_session=account.status == SWITCHING_PROTOCOLS)


def _used(
    budgets: TenantBudgets,
    reservation: BudgetReservation,
    context: RequestContext,
    attempt: Attempt | None,
    account: Account,
) -> Amounts:
    estimate = context.estimate
    gpus, gpu_s = 0.0, None
    if reservation.budgets.needs_gpu:
        models = context.policy.models
        gpus = gpus_of(models.get(estimate.model))
        if isinstance(attempt, LocalAttempt):
            gpu_s = 0.0
            if context.occupies_slot:
                held_s = account.ended_at - attempt.since
                gpu_s = gpu_time_s(models.get(attempt.estimate.model), held_s, attempt.mean_streams())
        elif account.outcome is Outcome.CACHED:
            gpu_s = 0.0
    price = None
    if reservation.budgets.needs_money:
        price = budgets.price_of(context.policy, estimate, context.priority)
    started = attempt is not None or account.first_byte_at is not None
    return used_amounts(account, estimate, gpu_s, gpus, price, started=started)
