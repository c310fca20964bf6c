"""The endpoints to which Envoy may send a request in turn, and what the first one is charged if Envoy repeats it.

The rules are those of the agent's own retries (`penstock/retries/next_step.py`), but Envoy applies them before the
picker receives a response: the picker states the next endpoint, the statuses and the number of retries beforehand.
"""

from __future__ import annotations

from typing import Final

from penstock.retries.retry_rules import BUSY_STATUSES, MAX_BROKEN, RETRIED_STATUSES, RetryReason
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.picker.conversation import PickerParts
from regional_agent.picker.early_ends import STREAM_HEADER, FailedAttempt
from regional_agent.picker.envoy_responses import Named, retry_on, set_header, target_message
from regional_agent.picker.grpc_requests import http_status
from regional_agent.requests.request_context import RequestContext
from regional_agent.routing.attempt import Attempt, LocalAttempt
from regional_agent.routing.forwarded_attempt import ForwardedAttempt
from regional_agent.telemetry.label_values import RequestKind

MAX_ALTERNATIVES: Final = 2
"""Maximum number of endpoints for Envoy's retries, after the chosen one."""

MAX_CONSIDERED: Final = 8
"""Number of endpoints of which the alternatives are chosen: those on other hosts first, as a host fails with all of
its endpoints."""

RETRY_HEADER: Final = b"x-penstock-retry"
"""Header by which Envoy selects the route of a request that may move between regions: one that another region receives
first, after a refusal, or also after a failure; or one that an endpoint of this region receives first."""

_RETRY_ON: Final = retry_on(b"reset,retriable-status-codes", RETRIED_STATUSES | BUSY_STATUSES)
"""Lets Envoy repeat a request if its endpoint disconnects before the response, fails, or is full."""

_RETRY_ON_FAILURE: Final = retry_on(b"reset,retriable-status-codes", RETRIED_STATUSES)
"""The same, but not if its endpoint is full: without a credit, no overflow leaves the region."""

_RETRY_ON_BUSY: Final = retry_on(b"retriable-status-codes", BUSY_STATUSES - {503})
"""The same of a request that must not run twice, and that its endpoint has not started; a 503 may be an error."""

_RETRY_GRPC_ON: Final = set_header(b"x-envoy-retry-grpc-on", b"internal,resource-exhausted,unavailable")
_RETRY_GRPC_ON_BUSY: Final = set_header(b"x-envoy-retry-grpc-on", b"resource-exhausted")
"""The same for statuses of gRPC in place of a response."""


class Targets:
    """Where Envoy may send one request, in order, and what is recorded of those that failed it."""

    def __init__(self, parts: PickerParts, context: RequestContext, attempt: Attempt, now: float) -> None:
        """Find the targets that follow the one of `attempt`, at `now` (s)."""
        self._parts = parts
        self._context = context
        self.regions: dict[str, ForwardedAttempt] = {}
        """The attempts in other regions, by `ip:port`."""
        self.endpoints: dict[str, Endpoint] = {}
        """The endpoints of this region, by `ip:port`."""
        self.begins_here = not attempt.from_peer
        """Whether the endpoints come first, and not the regions."""
        self.stream = b""
        """The identifier of the request in Envoy's access log; empty before Envoy has the targets."""
        self.is_known = False
        """Whether the address of the target of `attempt` is known."""
        self._at = ""
        """The address of the target whose attempt is the last one."""
        self._lost = 0
        """Number of failed attempts that have been recorded."""
        if isinstance(attempt, ForwardedAttempt):
            following, may_move = None, False
            if parts.proxy.retry_budget.allows_one(now):
                following, may_move = parts.proxy.router.after(context, attempt, now)
            self._add_region(attempt)
            self.is_known = bool(self.regions)
            if self.is_known:
                (self._at,) = self.regions
                self._add_region(following)
                if may_move:
                    self._add_others(self._others(attempt))
            return
        self._add(attempt.endpoint)
        self.is_known = bool(self.endpoints)
        if not self.is_known:
            return
        (self._at,) = self.endpoints
        others = self._others(attempt)
        if self._may_leave(attempt, others) and parts.proxy.retry_budget.allows_one(now):
            following = parts.proxy.router.after(context, attempt, now)[0]
            # Without a credit, the 429 of a full endpoint would reach the client, though one on the same host is free.
            if following is not None and (following.owes_credit or not others):
                self._add_region(following)
        if not self.regions:
            self._add_others(others)

    def _others(self, attempt: Attempt) -> list[Endpoint]:
        """Return the endpoints of this region that may follow, those on other hosts first."""
        others = self._parts.proxy.router.local.alternatives(self._context, attempt, MAX_CONSIDERED)
        if len(others) > 1:
            host = attempt.address.host
            others.sort(key=lambda each: each.address.host == host)
        return others

    def _may_leave(self, attempt: LocalAttempt, others: list[Endpoint]) -> bool:
        """Whether another region may follow an endpoint: if no other endpoint is ready, or only such of its host for a
        request that Envoy repeats once."""
        if attempt.rewrite is not None or len(self._context.residency.permitted.regions) < 2:
            return False
        return not others or (may_run_twice(self._context) and others[0].address.host == attempt.address.host)

    def _add_region(self, attempt: ForwardedAttempt | None) -> None:
        address = "" if attempt is None else self._parts.proxy.pools.peers.ip_and_port(attempt.address)
        if address and attempt is not None:
            self.regions.setdefault(address, attempt)

    def _add_others(self, others: list[Endpoint]) -> None:
        for endpoint in others[:MAX_ALTERNATIVES]:
            self._add(endpoint)

    def _add(self, endpoint: Endpoint) -> None:
        subset = self._context.subset
        address = endpoint.address if subset is None else subset.address_of(endpoint)
        destination = "" if address is None else self._parts.proxy.pools.endpoints.ip_and_port(address)
        if destination:
            self.endpoints.setdefault(destination, endpoint)

    def name_to_envoy(self, changes: bytes, now: float, *, over_grpc: bool) -> bytes:
        """Return the fields of a `HeaderMutation` for the request, `changes` with those that limit Envoy's retries.

        From now (s) on, Envoy's access log is read for the request.
        """
        context, parts, count = self._context, self._parts, len(self.endpoints)
        self.stream = parts.early_ends.add()
        if not self.regions:
            may_repeat = count > 1 and parts.proxy.retry_budget.allows_one(now)
            return changes + retry_headers(context, count, self.stream if may_repeat else b"", over_grpc=over_grpc)
        if self.begins_here:
            (following,) = self.regions.values()
            changes += set_header(RETRY_HEADER, b"here")
            if following.owes_credit:
                return changes + retry_headers(context, 1, self.stream, over_grpc=False)
            changes += set_header(STREAM_HEADER, self.stream) + (_RETRY_ON_FAILURE if may_run_twice(context) else b"")
            return changes + set_header(b"x-envoy-max-retries", b"1")
        retries = len(self.regions) + (count > 0) - 1
        if not retries:
            return changes
        changes += set_header(STREAM_HEADER, self.stream)
        changes += set_header(RETRY_HEADER, b"failed" if may_run_twice(context) else b"refused")
        return changes + set_header(b"x-envoy-max-retries", b"%d" % retries)

    def message(self, kind: int, changes: bytes, body: bytes | None) -> bytes:
        """Return the message that names the targets; arguments as of `target_message`."""
        routes = [(address.encode(), each.route_header) for address, each in self.regions.items()]
        regions, endpoints = [address for address, _ in routes], ",".join(self.endpoints).encode()
        if self.begins_here:
            named = Named(endpoints, b"", b"".join(regions), routes)
        else:
            named = Named(regions[0], endpoints, b"".join(regions[1:]), routes)
        return target_message(kind, changes, named, body, self.stream)

    def reached(self) -> str:
        """Return the address of the target that has the request now, by Envoy's access log."""
        failed = len(self._parts.early_ends.failed_attempts(self.stream))
        if not failed:
            return self._at
        order = [*self.endpoints, *self.regions] if self.begins_here else [*self.regions, *self.endpoints]
        return order[min(failed, len(order) - 1)]

    def is_lost(self) -> bool:
        """Whether the other region counts as failed to which Envoy has sent the request, by its access log."""
        region = self.regions.get(self.reached())
        return region is not None and region.peer_failed()

    def region_names(self, here: str) -> set[str]:
        """Return the regions to which Envoy may send the request; `here` is this one."""
        return {each.region for each in self.regions.values()} | ({here} if self.endpoints else set())

    def move(self, attempt: Attempt, served: str, now: float) -> Attempt | None:
        """Return the attempt at the target that has the request, and record the failure of those before it.

        None if the agent does not have that endpoint.

        Args:
            attempt: the attempt so far.
            served: the `ip:port` of the target; empty if it is not known.
            now: in s.
        """
        context, local, regions = self._context, self._parts.proxy.router.local, self.regions
        if not served or served == self._at:
            return attempt
        self._at = served
        failed = self._parts.early_ends.failed_attempts(self.stream)
        self._lose(attempt, failed, now)
        following = regions.get(served)
        if isinstance(attempt, ForwardedAttempt) and following is None:
            left = list(regions.values())
            following_it = left.index(attempt) + 1
            for each in left[following_it:]:
                self._lose(each, failed, now)
        endpoint = self.endpoints.get(served) or local.at_address(context.model, served)
        if following is None and endpoint is None:
            return None
        context.attempts += 1
        if following is not None:
            following.begin(context)
            return following
        assert endpoint is not None
        return local.services.reserve(context, endpoint, RequestKind.HOME if attempt.from_peer else attempt.kind, now)

    def _lose(self, attempt: Attempt, failed: list[FailedAttempt], now: float) -> None:
        """Record that an attempt failed, and that Envoy sent the request to the next target."""
        proxy, context, at = self._parts.proxy, self._context, self._lost
        self._lost += 1
        proxy.recorder.attempt_lost(context, attempt, now)
        why = record_failure(context, attempt, failed[at] if at < len(failed) else None, now)
        attempt.settle(now)
        context.attempt_failed(why.value, now)
        proxy.metrics.retried(why)
        proxy.retry_budget.withdraw(now)


def may_run_twice(context: RequestContext) -> bool:
    """Whether another engine may receive a request that the first one may have begun."""
    return context.is_repeatable and not context.is_for_object and context.failures_left > 1


def retry_headers(context: RequestContext, endpoints: int, stream: bytes, *, over_grpc: bool) -> bytes:
    """Return the fields of a `HeaderMutation` that limit Envoy's retries to the endpoints of the list.

    Args:
        endpoints: number of endpoints in the list. Beyond them, Envoy might choose one itself. A retry after the only
            one replaces a connection that has ended meanwhile.
        stream: the identifier of the request, which lets Envoy repeat it after a response; empty if it may not.
    """
    changes, count = b"", max(endpoints - 1, 1)
    if stream:
        repeatable = may_run_twice(context)
        changes = set_header(STREAM_HEADER, stream) + (_RETRY_ON if repeatable else _RETRY_ON_BUSY)
        if over_grpc:
            changes += _RETRY_GRPC_ON if repeatable else _RETRY_GRPC_ON_BUSY
        # The request may be the cause: not more often than the agent does.
        count = MAX_BROKEN - 1 if repeatable else count
    return changes + set_header(b"x-envoy-max-retries", b"%d" % count)


def record_failure(context: RequestContext, attempt: Attempt, failed: FailedAttempt | None, now: float) -> RetryReason:
    """Charge an endpoint, or exclude a region, after which Envoy sent the request to the next one; returns why.

    Args:
        failed: the response of the target; None if Envoy's access log does not state it.
        now: in s.
    """
    if failed is None or not failed.status:
        was_sent = failed is None or failed.was_sent
        attempt.unreachable(context, broke=was_sent)
        return RetryReason.CLOSED_EARLY if was_sent else RetryReason.CONNECT_FAILED
    status = http_status(failed.headers) or failed.status
    reason = attempt.on_head(status, dict(failed.headers), failed.headers)
    if reason is None or attempt.is_charged:
        attempt.failed_first(context)
        return RetryReason.ENGINE_ERROR
    attempt.rejected(context, reason, now)
    return attempt.retry_reason
