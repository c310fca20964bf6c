"""Error responses: the HTTP status of each reason for which a request ends, and the response of a refusal."""

from __future__ import annotations

from math import ceil
from random import Random
from typing import Final

from penstock.admission.retry_after import spread_retry_after_s
from penstock.routes.route import ErrorFormat
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.headers.header_rules import REFUSAL_HEADER
from regional_agent.http.messages import Request
from regional_agent.proxy.error_formats import (
    anthropic_type,
    content_type,
    error_body,
    openai_error,
    openai_limit,
    openai_type,
)
from regional_agent.proxy.rate_limit_headers import lines_of_states

REGIONS_HEADER = b"x-penstock-regions"
"""Response header with the entry regions to use instead, best first."""

ENTRIES_HEADER = b"x-penstock-entries"
"""Response header with the entry URLs of these regions, best first; absent if the policy states none."""

STATUS: dict[Reason, int] = {
    Reason.INVALID_API_KEY: 401,
    Reason.TOO_MANY_FAILURES: 429,
    Reason.TENANT_SUSPENDED: 403,
    Reason.TIER_UNKNOWN: 403,
    Reason.ROUTE_NOT_PERMITTED: 403,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.LOCATION_UNKNOWN: 451,
    Reason.NO_PERMITTED_REGION: 451,
    Reason.MISDIRECTED: 421,
    Reason.RESIDENCY_DENIED: 451,
    Reason.NONE_READY: 503,
    Reason.NO_POLICY: 503,
    Reason.SATURATED: 429,
    Reason.NO_IDLE_SLOTS: 429,
    Reason.BAD_ROUTE_CONTEXT: 403,
    Reason.ROUTE_CONTEXT_EXPIRED: 403,
    Reason.TOO_MANY_HOPS: 508,
    Reason.DEADLINE_PASSED: 504,
    Reason.ENGINE_FAILED: 502,
    Reason.BAD_REQUEST: 400,
    Reason.CONTEXT_LENGTH_EXCEEDED: 400,
    Reason.NOT_FOUND: 404,
    Reason.METHOD_NOT_ALLOWED: 405,
    Reason.UPGRADE_REQUIRED: 426,
    Reason.NOT_OFFERED: 501,
    Reason.BODY_TOO_LARGE: 413,
    Reason.HEAD_TOO_LARGE: 431,
    Reason.REQUEST_TIMEOUT: 408,
    Reason.TOO_MANY_CONNECTIONS: 429,
    Reason.TOO_MANY_REQUESTS: 429,
    Reason.QUOTA_EXCEEDED: 429,
    Reason.LOOP_DETECTED: 508,
    Reason.ENGINE_TIMEOUT: 504,
    Reason.STREAM_STALLED: 504,
    Reason.SHUTTING_DOWN: 503,
    Reason.LEDGER_FULL: 503,
    Reason.STORE_UNAVAILABLE: 503,
}
"""Status by reason. Reasons that only exclude one region or endpoint have no status."""

RETRIES: dict[Reason, bool | None] = {
    Reason.INVALID_API_KEY: False,
    Reason.TOO_MANY_FAILURES: True,
    Reason.TENANT_SUSPENDED: False,
    Reason.TIER_UNKNOWN: False,
    Reason.ROUTE_NOT_PERMITTED: False,
    Reason.MODEL_NOT_FOUND: False,
    Reason.LOCATION_UNKNOWN: False,
    Reason.NO_PERMITTED_REGION: False,
    Reason.MISDIRECTED: False,
    Reason.RESIDENCY_DENIED: False,
    Reason.NONE_READY: True,
    Reason.NO_POLICY: True,
    Reason.SATURATED: True,
    Reason.NO_IDLE_SLOTS: True,
    Reason.BAD_ROUTE_CONTEXT: False,
    Reason.ROUTE_CONTEXT_EXPIRED: False,
    Reason.TOO_MANY_HOPS: False,
    Reason.DEADLINE_PASSED: None,
    Reason.ENGINE_FAILED: None,
    Reason.BAD_REQUEST: False,
    Reason.CONTEXT_LENGTH_EXCEEDED: False,
    Reason.NOT_FOUND: False,
    Reason.METHOD_NOT_ALLOWED: False,
    Reason.UPGRADE_REQUIRED: False,
    Reason.NOT_OFFERED: False,
    Reason.BODY_TOO_LARGE: False,
    Reason.HEAD_TOO_LARGE: False,
    Reason.REQUEST_TIMEOUT: True,
    Reason.TOO_MANY_CONNECTIONS: True,
    Reason.TOO_MANY_REQUESTS: True,
    Reason.QUOTA_EXCEEDED: True,
    Reason.LOOP_DETECTED: False,
    Reason.ENGINE_TIMEOUT: None,
    Reason.STREAM_STALLED: None,
    Reason.SHUTTING_DOWN: True,
    Reason.LEDGER_FULL: True,
    Reason.STORE_UNAVAILABLE: True,
}
"""Whether the same request can succeed here later; None where an engine may have run it, so that the client decides.

Sent as `x-should-retry`, which the SDKs of OpenAI and Anthropic obey (`_base_client.py`); without it they repeat a
request after every status from 500 on, 501 and 508 included."""

MAX_SDK_WAIT_S: Final = 60
"""Maximum delay (s) that the same SDKs accept; they ignore a longer one, and retry within seconds. They read
`retry-after-ms` before `retry-after`."""

_SHOULD_RETRY: Final = {True: b"x-should-retry: true\r\n", False: b"x-should-retry: false\r\n", None: b""}

MEANING: dict[Reason, str] = {
    Reason.BAD_REQUEST: "Malformed: invalid HTTP or JSON, a field of the wrong type, or no model.",
    Reason.CONTEXT_LENGTH_EXCEEDED: "Prompt and answer together are longer than any endpoint of the model accepts.",
    Reason.INVALID_API_KEY: "The API key is missing or invalid. Send `Authorization: Bearer <key>`.",
    Reason.TOO_MANY_FAILURES: "Too many invalid keys or tokens came from this address. Check the key.",
    Reason.TENANT_SUSPENDED: "The tenant of the API key is suspended.",
    Reason.TIER_UNKNOWN: "The policy in force does not contain the tier of the tenant.",
    Reason.ROUTE_NOT_PERMITTED: "The tenant may not use this route.",
    Reason.BAD_ROUTE_CONTEXT: "Between agents: the route context is not signed by this fleet for this region.",
    Reason.ROUTE_CONTEXT_EXPIRED: "Between agents: the route context is too old. Check the agents' clocks.",
    Reason.NOT_FOUND: "No resource exists at this path.",
    Reason.METHOD_NOT_ALLOWED: "The path has no such method; `allow` lists the methods that it has.",
    Reason.UPGRADE_REQUIRED: "The path is served over WebSocket only.",
    Reason.NOT_OFFERED: "The API has this path, and this fleet does not offer it.",
    Reason.MODEL_NOT_FOUND: "The model does not exist.",
    Reason.REQUEST_TIMEOUT: "The request's head or body did not arrive in time.",
    Reason.BODY_TOO_LARGE: "The request body exceeds the size limit.",
    Reason.MISDIRECTED: "This region is forbidden; `x-penstock-regions` and `x-penstock-entries` (URLs) list others.",
    Reason.SATURATED: "All permitted endpoints are full. Retry after `retry-after` seconds.",
    Reason.QUOTA_EXCEEDED: "A budget of the tenant or key is used up. Retry after `retry-after` seconds.",
    Reason.TOO_MANY_CONNECTIONS: "Too many connections, from this address or in total. Use fewer, or retry later.",
    Reason.TOO_MANY_REQUESTS: "Too many requests a second from this address or the network around it. Send fewer.",
    Reason.HEAD_TOO_LARGE: "The request line and headers exceed the limit for size or number.",
    Reason.LOCATION_UNKNOWN: "The policy depends on the client's location, which is unknown.",
    Reason.NO_PERMITTED_REGION: "The policy permits no region for this request.",
    Reason.RESIDENCY_DENIED: "The policy forbids this region for this request.",
    Reason.ENGINE_FAILED: "Engines failed, before a response began or during it.",
    Reason.NONE_READY: "The model is ready in no permitted region. Retry after `retry-after` seconds.",
    Reason.NO_POLICY: "This agent has not received a policy yet.",
    Reason.DEADLINE_PASSED: "The response was not complete at the deadline; see `x-request-timeout-ms`.",
    Reason.ENGINE_TIMEOUT: "The engine did not begin to respond in time. It may have started, so there was no retry.",
    Reason.STREAM_STALLED: "The engine stopped sending during a stream. Sent as the last event of the stream.",
    Reason.SHUTTING_DOWN: "The agent stops, and the request did not end within `shutdown_grace_s`. Retry at once.",
    Reason.LEDGER_FULL: "The agent has no room for records of use, and its settings refuse requests without a record.",
    Reason.STORE_UNAVAILABLE: "The store of files and batches cannot be reached, or too many uploads run at once.",
    Reason.LOOP_DETECTED: "The request returned to an agent that had forwarded it.",
    Reason.NO_IDLE_SLOTS: "Between agents: a request with a priority took the slot of the batch request.",
    Reason.TOO_MANY_HOPS: "Between agents: the request was forwarded more than once.",
}
"""Description of each reason, for the documentation."""


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


_RETRY_WORDS: Final = {True: "yes", False: "no", None: "client"}


def reasons_table() -> str:
    """The table in docs/errors.md: every reason that ends a request, by status."""
    rows = sorted(
        (status, reason.value, _RETRY_WORDS[RETRIES[reason]], MEANING[reason]) for reason, status in STATUS.items()
    )
    lines = ["| status | code | OpenAI type | Anthropic type | retry | meaning |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {status} | `{code}` | `{openai_type(status)}` | `{anthropic_type(status)}` | {retry} | {meaning} |"
        for status, code, retry, meaning in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(reasons_table())
