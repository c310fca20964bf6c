"""What attempts that are retried mean in the table of outcomes."""

from __future__ import annotations

from penstock.accounts.outcome_rules import RULES
from penstock.retries.retry_rules import RETRY_RULES, RetryReason


def test_each_reason_for_a_retry_is_an_outcome_that_may_be_retried() -> None:
    assert set(RETRY_RULES) == set(RetryReason)
    assert all(RULES[rule.outcome].may_retry for rule in RETRY_RULES.values())


def test_only_failures_of_the_target_are_its_fault() -> None:
    at_fault = {why for why, rule in RETRY_RULES.items() if RULES[rule.outcome].charges_endpoint}
    assert at_fault == {
        RetryReason.CONNECT_FAILED,
        RetryReason.CLOSED_EARLY,
        RetryReason.CREDENTIAL_REJECTED,
        RetryReason.ENGINE_ERROR,
    }
