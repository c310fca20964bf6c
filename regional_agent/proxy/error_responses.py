"""Error responses: the response of a refusal."""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Final

from penstock.accounts.refusal_statuses import RETRIES, STATUS
from penstock.admission.retry_after import spread_retry_after_s
from penstock.http.header_rules import REFUSAL_HEADER
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Refusal
from regional_agent.http.messages import Request
from regional_agent.proxy.error_formats import (
    content_type,
    error_body,
    openai_error,
    openai_limit,
)
from regional_agent.proxy.rate_limit_headers import lines_of_states

REGIONS_HEADER = b"x-penstock-regions"
"""Response header with the entry regions to use instead, best first."""

ENTRIES_HEADER = b"x-penstock-entries"
"""Response header with the entry URLs of these regions, best first; absent if the policy states none."""

MAX_SDK_WAIT_S: Final = 60
"""Maximum delay (s) that the SDKs of OpenAI and Anthropic accept; they ignore a longer one, and retry within
seconds. They read `retry-after-ms` before `retry-after`."""

_SHOULD_RETRY: Final = {True: b"x-should-retry: true\r\n", False: b"x-should-retry: false\r\n", None: b""}


def error_format_of(request: Request) -> ErrorFormat:
    """The error format of a request's route; OpenAI's for a request without a route."""
    return ErrorFormat.OPENAI if request.route is None else request.route.errors


def refusal_response(
    refusal: Refusal, rng: Random | None, error_format: ErrorFormat = ErrorFormat.OPENAI, request_id: str = ""
) -> tuple[int, list[bytes], bytes]:
    """Status, header lines and body of a refusal.

    Args:
        rng: spreads the Retry-After times of clients; None for a peer, whose agent spreads them.
        error_format: the error format of the request's route.
        request_id: identifies the request; empty if the bytes received were not a valid request.
    """
    status = STATUS[refusal.reason]
    code, exceeded = refusal.reason.value, refusal.exceeded
    is_spent = exceeded is not None and exceeded.is_money and exceeded.retry_after_s > MAX_SDK_WAIT_S
    is_temporary = status == 401 and refusal.retry_after_s is not None
    lines = [
        b"content-type: %b\r\n" % content_type(error_format),
        b"%b: %b\r\n" % (REFUSAL_HEADER, refusal.reason.encode()),
        _SHOULD_RETRY[is_temporary or (RETRIES[refusal.reason] and not is_spent)],
    ]
    if status == 401:
        lines.append(b"www-authenticate: Bearer\r\n")
    if refusal.allow:
        lines.append(b"allow: %b\r\n" % ", ".join(refusal.allow).encode())
    if status == 426:
        lines.append(b"upgrade: websocket\r\n")
    if refusal.retry_after_s is not None:
        lines += _retry_after_lines(refusal.retry_after_s, rng, is_budget=exceeded is not None, is_spent=is_spent)
    if refusal.try_regions:
        lines.append(b"%b: %b\r\n" % (REGIONS_HEADER, ",".join(refusal.try_regions).encode()))
    if refusal.try_urls:
        lines.append(b"%b: %b\r\n" % (ENTRIES_HEADER, ",".join(refusal.try_urls).encode()))
    if request_id:
        lines.append(b"x-request-id: %b\r\n" % request_id.encode())
        if error_format is ErrorFormat.ANTHROPIC:
            lines.append(b"request-id: %b\r\n" % request_id.encode())
    if exceeded is not None:
        lines.append(lines_of_states(exceeded.states, error_format))
    if exceeded is not None and error_format is ErrorFormat.OPENAI:
        return status, lines, openai_error(*openai_limit(exceeded, is_spent=is_spent), refusal.detail)
    return status, lines, error_body(error_format, status, code, refusal.detail, request_id=request_id)


def _retry_after_lines(wait_s: float, rng: Random | None, *, is_budget: bool, is_spent: bool) -> list[bytes]:
    """The header lines by which a client, or with `rng` None a peer, learns when to retry."""
    if rng is None:
        return [b"retry-after: %d\r\n" % ceil(wait_s)]
    after_s = spread_retry_after_s(wait_s, rng)
    lines = [b"retry-after: %d\r\n" % after_s]
    if is_budget and wait_s <= MAX_SDK_WAIT_S:
        # An exact time, since the budget admits the next request then; spread as above.
        lines.append(b"retry-after-ms: %d\r\n" % ceil(wait_s * 1000 * (1 + rng.random() / 2)))
    elif after_s > MAX_SDK_WAIT_S and not is_spent:
        lines.append(b"retry-after-ms: %d\r\n" % rng.randint(MAX_SDK_WAIT_S * 500, MAX_SDK_WAIT_S * 1000))
    return lines


def message_error(refusal: Refusal, error_format: ErrorFormat, request_id: str) -> bytes:
    """The message that reports the refusal of a message to the client of a WebSocket; an event in OpenAI's format."""
    status, code = STATUS[refusal.reason], refusal.reason.value
    body = error_body(error_format, status, code, refusal.detail, request_id=request_id)
    return b'{"type":"error",' + body[1:] if error_format is ErrorFormat.OPENAI else body
