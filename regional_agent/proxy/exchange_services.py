"""The services that all exchanges of a proxy share."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from penstock.admission.retry_budget import RetryBudget
from penstock.answers.answer_format import AnswerFormats
from penstock.answers.usage_request import UsageRequests
from penstock.routes.timeouts import TimeLimits
from penstock.routing.reasons import Refusal
from regional_agent.http.limits import Limits
from regional_agent.proxy.outcome_recorder import OutcomeRecorder
from regional_agent.proxy.response_headers import ResponseHeaders
from regional_agent.proxy.timer_wheel import Checked, TimerWheel
from regional_agent.routing.router import Router
from regional_agent.upstream.upstream_pool import UpstreamPool


class ActiveExchange(Checked, Protocol):
    """An exchange in progress."""

    @property
    def model(self) -> str:
        """The requested model."""

    @property
    def tenant(self) -> str:
        """The owner of the request."""

    def shut_down(self) -> None:
        """End the exchange because the agent stops."""

    def reauthorize(self) -> Refusal | None:
        """End the exchange if the policy in force no longer permits it; returns the reason if it does so."""


class ExchangeServices:
    """The collaborators of exchanges."""

    __slots__ = (
        "active",
        "answer_formats",
        "clock",
        "endpoint_pool",
        "limits",
        "peer_pool",
        "recorder",
        "response_headers",
        "retry_budget",
        "rng",
        "router",
        "time_limits",
        "usage_requests",
        "via",
    )

    def __init__(
        self,
        router: Router,
        endpoint_pool: UpstreamPool,
        peer_pool: UpstreamPool,
        recorder: OutcomeRecorder,
        limits: Limits,
        *,
        via: bytes,
        rng: Random,
        clock: Callable[[], float],
    ) -> None:
        """Bundle the collaborators.

        Args:
            via: this agent's entry in Via headers.
            rng: spreads the Retry-After times of refusals.
            clock: monotonic (s).
        """
        self.router = router
        self.endpoint_pool = endpoint_pool
        self.peer_pool = peer_pool
        self.recorder = recorder
        self.limits = limits
        self.time_limits = TimeLimits(
            None,
            limits.first_byte_timeout_s,
            limits.first_byte_timeout_s,
            limits.stall_timeout_s,
            limits.request_timeout_s,
        )
        """The time limits that apply where neither the model nor the route of a request sets a limit."""
        self.via = via
        self.rng = rng
        self.clock = clock
        self.answer_formats = AnswerFormats()
        self.usage_requests = UsageRequests()
        """The models whose engines refuse to report the usage of a stream on request."""
        self.retry_budget = RetryBudget(clock())
        self.response_headers = ResponseHeaders(router.region)
        self.active: TimerWheel[ActiveExchange] = TimerWheel()
        """The exchanges in progress."""
