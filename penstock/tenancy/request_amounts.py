"""What a request needs of budgets, by its estimate, and what it used, by its account."""

from __future__ import annotations

from math import inf
from typing import Final

from penstock.accounts.account import Account
from penstock.ledger.prices import Rate, cost_units
from penstock.policy.kinds.models import CostUnit
from penstock.pools.placement import WorkEstimate
from penstock.tenancy.amounts import Amounts

LONGEST_ANSWER: Final = 8.0
"""Length of the longest answers of requests without a limit of their own, in expected lengths. Budgets of money hold
for answers up to that length."""

_TOKEN: Final = CostUnit.TOKEN
"""A module constant, since in Python 3.11 access to an enum member through its class is a function call."""


def estimated_amounts(estimate: WorkEstimate, gpus: float, price: Rate | None) -> Amounts:
    """Return what a request needs. One that uses no tokens, such as one that counts them, needs a request alone.

    Args:
        gpus: GPUs of one endpoint of the model; 0 if no budget is of GPU seconds.
        price: of the model or adapter; None if its requests cost nothing, or no budget is of money.
    """
    amounts, cost, work = Amounts(), estimate.cost, estimate.work
    prefill_s, decode_s = work.prefill_s, work.decode_s
    if cost.unit is _TOKEN and not estimate.ask.uses_tokens:
        prefill_s = decode_s = 0.0
    amounts.gpu_s = (prefill_s + decode_s) * gpus
    if cost.unit is _TOKEN:
        input_unit_s = cost.input_unit_s
        amounts.input_tokens = prefill_s / input_unit_s if input_unit_s > 0.0 else 0.0
        amounts.output_tokens = decode_s / cost.output_unit_s
        if amounts.output_tokens:
            ask = estimate.ask
            amounts.most_output_tokens = inf if ask.max_tokens is None else float(ask.max_tokens * ask.count)
    if price is not None:
        units = cost_units(cost, decode_s)
        amounts.price = price if cost.unit is _TOKEN else None
        amounts.money = price.amount(amounts.input_tokens, 0.0, amounts.output_tokens, units)
        if amounts.output_tokens:
            most = amounts.most_output_tokens
            most = most if most < inf else LONGEST_ANSWER * amounts.output_tokens
            amounts.most_money = price.amount(amounts.input_tokens, 0.0, most, units)
    return amounts


def used_amounts(
    account: Account,
    estimate: WorkEstimate,
    gpu_s: float | None,
    gpus: float,
    price: Rate | None,
    *,
    started: bool,
) -> Amounts:
    """Return what a request used.

    A request that did not start used nothing. One that started, and whose usage the fleet bears, counts as a request.

    Args:
        gpu_s: the measured GPU seconds; None for a request that another region served.
        gpus: GPUs of one endpoint of the model; 0 if no budget is of GPU seconds.
        price: of the model or adapter; None if its requests cost nothing, or no budget is of money.
        started: whether a target received the request last.
    """
    amounts = Amounts(1.0 if started else 0.0)
    if not account.charges_tenant or not started:
        return amounts
    usage, cost = account.usage, estimate.cost
    if usage is not None:
        amounts.input_tokens = float(usage.prompt_tokens)
        amounts.cached_tokens = float(usage.cached_tokens)
        amounts.output_tokens = float(usage.answer_tokens)
    work = estimate.work
    if gpus == 0.0:
        pass
    elif gpu_s is not None:
        amounts.gpu_s = gpu_s
    elif usage is not None and cost.unit is _TOKEN:
        prompt_tokens = usage.prompt_tokens - usage.cached_tokens
        amounts.gpu_s = (prompt_tokens * cost.input_unit_s + usage.answer_tokens * cost.output_unit_s) * gpus
    elif account.first_byte_at is not None:
        amounts.gpu_s = (work.prefill_s + work.decode_s) * gpus
    if price is not None and account.began_answer:
        amounts.money = price.amount(
            amounts.input_tokens,
            amounts.cached_tokens,
            amounts.output_tokens,
            units=cost_units(cost, work.decode_s),
        )
        amounts.money *= account.price_share
    return amounts
