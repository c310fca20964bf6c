"""The HTTP status of each reason for which a request ends, and whether the client may repeat the request."""

from __future__ import annotations

from typing import Final

from penstock.routing.reasons import Reason

_RESPONSES: Final[dict[Reason, tuple[int, bool | None]]] = {
    Reason.INVALID_API_KEY: (401, False),
    Reason.TOO_MANY_FAILURES: (429, True),
    Reason.TENANT_SUSPENDED: (403, False),
    Reason.TIER_UNKNOWN: (403, False),
    Reason.ROUTE_NOT_PERMITTED: (403, False),
    Reason.MODEL_NOT_FOUND: (404, False),
    Reason.LOCATION_UNKNOWN: (451, False),
    Reason.NO_PERMITTED_REGION: (451, False),
    Reason.MISDIRECTED: (421, False),
    Reason.RESIDENCY_DENIED: (451, False),
    Reason.NONE_READY: (503, True),
    Reason.NO_POLICY: (503, True),
    Reason.SATURATED: (429, True),
    Reason.NO_IDLE_SLOTS: (429, True),
    Reason.BAD_ROUTE_CONTEXT: (403, False),
    Reason.ROUTE_CONTEXT_EXPIRED: (403, False),
    Reason.TOO_MANY_HOPS: (508, False),
    Reason.DEADLINE_PASSED: (504, None),
    Reason.ENGINE_FAILED: (502, None),
    Reason.BAD_REQUEST: (400, False),
    Reason.CONTEXT_LENGTH_EXCEEDED: (400, False),
    Reason.NOT_FOUND: (404, False),
    Reason.METHOD_NOT_ALLOWED: (405, False),
    Reason.UPGRADE_REQUIRED: (426, False),
    Reason.NOT_OFFERED: (501, False),
    Reason.BODY_TOO_LARGE: (413, False),
    Reason.HEAD_TOO_LARGE: (431, False),
    Reason.REQUEST_TIMEOUT: (408, True),
    Reason.TOO_MANY_CONNECTIONS: (429, True),
    Reason.TOO_MANY_REQUESTS: (429, True),
    Reason.QUOTA_EXCEEDED: (429, True),
    Reason.LOOP_DETECTED: (508, False),
    Reason.ENGINE_TIMEOUT: (504, None),
    Reason.STREAM_STALLED: (504, None),
    Reason.SHUTTING_DOWN: (503, True),
    Reason.LEDGER_FULL: (503, True),
    Reason.STORE_UNAVAILABLE: (503, True),
    Reason.NOT_KEPT: (504, False),
}
"""Status by reason, and whether the same request can succeed here later. Reasons that only exclude one region or
endpoint have none. docs/errors.md describes each."""

STATUS: Final[dict[Reason, int]] = {reason: status for reason, (status, _) in _RESPONSES.items()}

RETRIES: Final[dict[Reason, bool | None]] = {reason: retry for reason, (_, retry) in _RESPONSES.items()}
"""Whether the same request can succeed here later; None where an engine may have run it, so that the client decides.

Sent as `x-should-retry`, which the SDKs of OpenAI and Anthropic obey (`_base_client.py`); without it they repeat a
request after every status from 500 on, 501 and 508 included."""
