"""The usage in the account of a request: what the engine reported, and what the agent counts where it did not."""

from __future__ import annotations

import pytest

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import RULES, Outcome
from penstock.answers.token_counts import MAX_TOKENS, Usage
from penstock.cost.request_properties import CostInputs
from penstock.cost.work import Work
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.pools.placement import WorkEstimate

ESTIMATE = WorkEstimate("t", "m", Cost(CostUnit.TOKEN, 0.001, 0.01), CostInputs(400), Work(0.1, 2.0), True)


@pytest.mark.parametrize(
    ("reported", "delivered", "is_final", "usage", "is_estimated"),
    [
        (Usage(12, 3, 8), 9, True, Usage(12, 3, 8), False),
        (Usage(0, 3), 9, True, Usage(100, 3), True),
        (Usage(0, 3), -1, True, Usage(100, 3), True),
        (Usage(12, 3, 8), 9, False, Usage(12, 9, 8), True),
        (Usage(12, 0, 8, answer_is_known=False), -1, True, Usage(12, 200, 8), True),
        (Usage(12, 0, 8, answer_is_known=False), 9, True, Usage(12, 9, 8), True),
        (Usage(0, 3, prompt_is_known=False), -1, True, Usage(100, 3), True),
        (Usage(12, 3, prompt_is_known=False), -1, True, Usage(12, 3), True),
        (None, 9, False, Usage(100, 9), True),
        (None, -1, False, Usage(100, 200), True),
        # A stream of which the client received nothing.
        (None, 0, False, Usage(100, 0), True),
    ],
)
def test_numbers_that_the_engine_does_not_report_are_estimated(
    reported: Usage | None, delivered: int, is_final: bool, usage: Usage, is_estimated: bool
) -> None:
    account = Account(Outcome.OK, "", 200, 1.0, 2.0)
    account.use_tokens(ESTIMATE, reported, delivered, is_final=is_final)
    assert (account.usage, account.is_estimated) == (usage, is_estimated)
    is_input_exact = reported is not None and reported.prompt_is_known and reported.prompt_tokens > 0
    is_output_exact = reported is not None and reported.answer_is_known and is_final
    assert (account.is_input_estimated, account.is_output_estimated) == (not is_input_exact, not is_output_exact)
    is_measured = is_final and reported is not None and reported.answer_is_known
    assert account.measured_usage == (reported if is_measured else None)


@pytest.mark.parametrize(
    ("text_bytes", "max_tokens", "tokens"),
    [
        (0, None, 200),
        (40, None, 1),
        (520, None, 100),
        (40_120, None, 10_000),
        (40_120, 50, 50),
        (520, 500, 100),
        (1 << 30, None, MAX_TOKENS),  # decompressed from a megabyte
        (1 << 30, 10**9, MAX_TOKENS),
    ],
)
def test_an_answer_whose_tokens_the_engine_does_not_report_has_those_of_its_size(
    text_bytes: int, max_tokens: int | None, tokens: int
) -> None:
    account = Account(Outcome.OK, "", 200, 1.0, 2.0)
    ask = CostInputs(400, max_tokens=max_tokens)
    estimate = WorkEstimate("t", "m", Cost(CostUnit.TOKEN, 0.001, 0.01), ask, Work(0.1, 2.0), False)
    account.use_tokens(estimate, Usage(12, 0, answer_is_known=False), -1, is_final=True, text_bytes=text_bytes)
    assert account.usage == Usage(12, tokens)


def test_an_answer_of_vectors_has_no_tokens_whatever_its_size() -> None:
    account = Account(Outcome.OK, "", 200, 1.0, 2.0)
    estimate = WorkEstimate("t", "m", Cost(CostUnit.TOKEN, 0.001, 0.01), CostInputs(400), Work(0.1, 0.0), False)
    account.use_tokens(estimate, None, -1, is_final=False, text_bytes=100_000)
    assert account.usage == Usage(100, 0)


def test_a_model_without_a_cost_of_input_has_no_estimated_prompt_tokens() -> None:
    account = Account(Outcome.OK, "", 200, 1.0, 2.0)
    estimate = WorkEstimate("t", "m", Cost(CostUnit.TOKEN, 0.0, 0.01), CostInputs(400), Work(0.1, 2.0), True)
    account.use_tokens(estimate, None, -1, is_final=False)
    assert account.usage == Usage(0, 200)


@pytest.mark.parametrize("reported", [None, Usage(12, 3)])
def test_a_request_that_uses_no_tokens_has_none_whatever_its_answer_reports(reported: Usage | None) -> None:
    account, cost = Account(Outcome.OK, "", 200, 1.0, 2.0), Cost(CostUnit.TOKEN, 0.001, 0.01)
    estimate = WorkEstimate("t", "m", cost, CostInputs(400, answers=False, uses_tokens=False), Work(0.1, 0.0), False)
    account.use_tokens(estimate, reported, -1, is_final=True)
    assert (account.usage, account.is_estimated, account.measured_usage) == (Usage(0, 0), False, None)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_account_begins_at_zero_and_its_outcome_decides_who_pays(outcome: Outcome) -> None:
    account = Account(outcome, "reason", 418, 1.0, 2.0)
    assert (account.outcome, account.reason, account.status) == (outcome, "reason", 418)
    assert (account.first_byte_at, account.ended_at) == (1.0, 2.0)
    assert account.charges_tenant is RULES[outcome].charges_tenant
    assert (account.price_share, account.received_bytes, account.sent_bytes, account.usage) == (1.0, 0, 0, None)
