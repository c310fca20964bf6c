"""Every reason that ends a request has a status, and the documented table equals the code."""

from __future__ import annotations

import re

from penstock.accounts.refusal_statuses import RETRIES, STATUS
from penstock.routing.reasons import Reason
from regional_agent.proxy.error_formats import anthropic_type, openai_type
from tests.support.paths import ROOT

DOCUMENT = ROOT / "docs" / "errors.md"
RETRY_WORDS = {True: "yes", False: "no", None: "client"}


def test_a_refusal_of_status_500_or_more_that_cannot_succeed_stops_retries() -> None:
    """The SDKs of OpenAI and Anthropic repeat requests after 408, 409, 429 and all statuses from 500 on."""
    stopped = {reason for reason, status in STATUS.items() if status >= 500 and RETRIES[reason] is False}
    assert stopped == {Reason.NOT_OFFERED, Reason.NOT_KEPT, Reason.LOOP_DETECTED, Reason.TOO_MANY_HOPS}
    assert all(RETRIES[reason] for reason, status in STATUS.items() if status in (408, 429))


def test_the_document_has_each_reason_in_order_with_a_meaning() -> None:
    expected = [
        f"| {status} | `{code}` | `{openai_type(status)}` | `{anthropic_type(status)}` | {RETRY_WORDS[retries]} |"
        for status, code, retries in sorted(
            (status, reason.value, RETRIES[reason]) for reason, status in STATUS.items()
        )
    ]
    assert re.findall(r"^(\| \d{3} \|.*\|) [A-Z].+\. \|$", DOCUMENT.read_text(), re.MULTILINE) == expected


def test_reasons_without_a_status_reject_only_a_region_or_an_endpoint() -> None:
    assert {reason for reason in Reason if reason not in STATUS} == {
        Reason.RESIDENCY_NOT_ALLOWED,
        Reason.REGION_UNKNOWN,
        Reason.REGION_FAILED,
        Reason.REGION_DRAINING,
        Reason.SPILLOVER_LIMIT,
        Reason.MODEL_NOT_READY,
        Reason.NO_CREDIT,
        Reason.NOT_WORTH_THE_TRIP,
        Reason.COSTS_MORE,
        Reason.ALREADY_TRIED,
        Reason.UNREACHABLE,
        Reason.ENDPOINT_NOT_READY,
        Reason.ENDPOINT_EJECTED,
        Reason.ENDPOINT_SUSPECT,
        Reason.ENDPOINT_DRAINING,
        Reason.ENDPOINT_SKEWED,
        Reason.ENDPOINT_FULL,
        Reason.BURST_WITHOUT_PRICE,
        Reason.BURST_NOT_NEEDED,
        Reason.BURST_COSTS_MORE,
    }
