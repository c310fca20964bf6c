"""What a client asks for in headers of its request: a timeout, a lower priority, no lighter model."""

from __future__ import annotations

import re
from math import inf
from typing import Final

from penstock.http.header_rules import FALLBACK_HEADER, PRIORITY_HEADER, TIMEOUT_HEADER
from penstock.policy.kinds.tenants import MIN_PRIORITY
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.messages import Request
from regional_agent.requests.request_context import RequestContext

_TIMEOUT: Final = re.compile(rb"[0-9]{1,9}")
_PRIORITY: Final = re.compile(rb"-?[0-9]{1,9}")
_NO_FALLBACK: Final = b"none"


class RequestOptions:
    """The options of one request.

    Args:
        timeout_s: time (s) that the client waits for the response; inf for no limit.
        priority: the highest priority that the request asks for; None: that of its tenant.
        may_fall_back: whether the fallback of the model may serve the request.
    """

    __slots__ = ("may_fall_back", "priority", "timeout_s")

    def __init__(self, timeout_s: float = inf, priority: int | None = None, *, may_fall_back: bool = True) -> None:
        self.timeout_s = timeout_s
        self.priority = priority
        self.may_fall_back = may_fall_back

    def apply(self, context: RequestContext) -> None:
        """Set the options of a request. A priority above that of the tenant has no effect."""
        if self.priority is not None and max(MIN_PRIORITY, self.priority) < context.priority:
            context.priority = max(MIN_PRIORITY, self.priority)
        context.may_fall_back = self.may_fall_back


NO_OPTIONS: Final = RequestOptions()


def options_of(request: Request) -> RequestOptions | Refusal:
    """Read the options of a request from its headers, or refuse a malformed one."""
    timeout_ms, priority = request.header(TIMEOUT_HEADER), request.header(PRIORITY_HEADER)
    fallback = request.header(FALLBACK_HEADER)
    if timeout_ms is not None and (not _TIMEOUT.fullmatch(timeout_ms) or int(timeout_ms) == 0):
        return Refusal(Reason.BAD_REQUEST, f"{TIMEOUT_HEADER.decode()} is not a number of milliseconds")
    if priority is not None and not _PRIORITY.fullmatch(priority):
        return Refusal(Reason.BAD_REQUEST, f"{PRIORITY_HEADER.decode()} is not a whole number")
    if fallback is not None and fallback != _NO_FALLBACK:
        return Refusal(Reason.BAD_REQUEST, f"{FALLBACK_HEADER.decode()} is not `none`; omit it to permit the fallback")
    return RequestOptions(
        inf if timeout_ms is None else int(timeout_ms) / 1000,
        None if priority is None else int(priority),
        may_fall_back=fallback is None,
    )
