"""How a refusal looks to a client: OpenAI's error shape, a stable code, and the HTTP status that fits.

The shape is that of https://platform.openai.com/docs/guides/error-codes: SDKs read `error.type` and `error.code`.
"""

from __future__ import annotations

from random import Random

import msgspec

from penstock.admission.queueing import come_again_in_s
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.header_rules import REFUSAL_HEADER

REGIONS_HEADER = b"x-penstock-regions"
"""Entry regions to use instead, best first."""

STATUS: dict[Reason, int] = {
    Reason.INVALID_API_KEY: 401,
    Reason.MODEL_NOT_FOUND: 404,
    Reason.LOCATION_UNKNOWN: 451,
    Reason.NO_PERMITTED_REGION: 451,
    Reason.MISDIRECTED: 421,
    Reason.RESIDENCY_DENIED: 451,
    Reason.NONE_READY: 503,
    Reason.NO_POLICY: 503,
    Reason.SATURATED: 429,
    Reason.BAD_ROUTE_CONTEXT: 403,
    Reason.ROUTE_CONTEXT_EXPIRED: 403,
    Reason.TOO_MANY_HOPS: 508,
    Reason.DEADLINE_PASSED: 504,
    Reason.ENGINE_FAILED: 502,
    Reason.BAD_REQUEST: 400,
    Reason.NOT_FOUND: 404,
    Reason.BODY_TOO_LARGE: 413,
    Reason.HEAD_TOO_LARGE: 431,
    Reason.REQUEST_TIMEOUT: 408,
    Reason.TOO_MANY_CONNECTIONS: 429,
    Reason.QUOTA_EXCEEDED: 429,
    Reason.LOOP_DETECTED: 508,
    Reason.ENGINE_TIMEOUT: 504,
    Reason.STREAM_STALLED: 504,
}
"""Reasons that end a whole request; those that only reject one region or endpoint have no status."""

MEANING: dict[Reason, str] = {
    Reason.BAD_REQUEST: "Not HTTP, not JSON, a field of the wrong type, or no model named. Mend the request.",
    Reason.INVALID_API_KEY: "No API key, or one that nobody has. Send `Authorization: Bearer <key>`.",
    Reason.BAD_ROUTE_CONTEXT: "Agents only: a forwarded request that no agent of this fleet signed for this region.",
    Reason.ROUTE_CONTEXT_EXPIRED: "Agents only: signed too long ago; look at the agents' clocks.",
    Reason.NOT_FOUND: "Nothing is served at this method and path.",
    Reason.MODEL_NOT_FOUND: "No model of this name.",
    Reason.REQUEST_TIMEOUT: "The head or the body took too long to arrive.",
    Reason.BODY_TOO_LARGE: "The body is larger than allowed here.",
    Reason.MISDIRECTED: "This region may not touch the request; `x-penstock-regions` names entries that may.",
    Reason.SATURATED: "Every permitted place is full. Try again after `retry-after` seconds.",
    Reason.QUOTA_EXCEEDED: "The tenant is at its quota here. Try again after `retry-after` seconds.",
    Reason.TOO_MANY_CONNECTIONS: "Too many connections, from this address or in all. Use fewer, or try again later.",
    Reason.HEAD_TOO_LARGE: "Request line and headers are larger, or more, than allowed here.",
    Reason.LOCATION_UNKNOWN: "Policy depends on where the client is, and that is not known.",
    Reason.NO_PERMITTED_REGION: "No region exists that policy lets touch the request.",
    Reason.RESIDENCY_DENIED: "Policy forbids this region to touch the request.",
    Reason.ENGINE_FAILED: "Engines failed, before any began to answer or in the middle of it.",
    Reason.NONE_READY: "Regions are permitted, but in none is the model ready. Try again after `retry-after` seconds.",
    Reason.NO_POLICY: "This agent has not been told its policy yet.",
    Reason.DEADLINE_PASSED: "The answer was not there when the deadline came; see `x-request-timeout-ms`.",
    Reason.ENGINE_TIMEOUT: "The engine did not begin to answer in time; it may have started, so nothing was retried.",
    Reason.STREAM_STALLED: "The engine stopped in the middle of a stream. Comes as the stream's last event.",
    Reason.LOOP_DETECTED: "The request has come back to an agent that it has been through.",
    Reason.TOO_MANY_HOPS: "Agents only: forwarded more than once.",
}
"""What each reason says to whoever is refused."""

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    421: "misdirected_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    451: "residency_error",
}


def error_body(status: int, code: str, message: str, param: str | None = None) -> bytes:
    """OpenAI's error object, encoded; `param` names the field at fault."""
    return msgspec.json.encode({"error": {"message": message, "type": _kind(status), "param": param, "code": code}})


def refusal_response(refusal: Refusal, rng: Random) -> tuple[int, list[bytes], bytes]:
    """Status, header lines and body for a refused request; `rng` spreads the times at which clients come again."""
    status = STATUS[refusal.reason]
    lines = [b"content-type: application/json\r\n", b"%b: %b\r\n" % (REFUSAL_HEADER, refusal.reason.encode())]
    if status == 401:
        lines.append(b"www-authenticate: Bearer\r\n")
    if refusal.retry_after_s is not None:
        lines.append(b"retry-after: %d\r\n" % come_again_in_s(refusal.retry_after_s, rng))
    if refusal.try_regions:
        lines.append(b"%b: %b\r\n" % (REGIONS_HEADER, ",".join(refusal.try_regions).encode()))
    return status, lines, error_body(status, refusal.reason.value, refusal.detail)


def stream_error_event(reason: Reason, message: str) -> bytes:
    """The server-sent event that ends a broken stream, so that a client does not take it for a whole answer."""
    return b"data: " + error_body(STATUS[reason], reason.value, message) + b"\n\n"


def reasons_table() -> str:
    """The table of docs/errors.md: every reason that ends a request, by status."""
    rows = sorted((status, reason.value, MEANING[reason]) for reason, status in STATUS.items())
    lines = ["| status | code | type | meaning |", "|---|---|---|---|"]
    lines += [f"| {status} | `{code}` | `{_kind(status)}` | {meaning} |" for status, code, meaning in rows]
    return "\n".join(lines)


def _kind(status: int) -> str:
    return _TYPES.get(status, "server_error")


if __name__ == "__main__":
    print(reasons_table())
