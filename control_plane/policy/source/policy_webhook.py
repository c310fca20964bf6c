"""Webhook deliveries from the host of the policy repository: an authentic delivery triggers a poll."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from adapters.access.login_failures import LoginFailures
from control_plane.api.responses import Problem
from control_plane.metrics import ControlPlaneMetrics, WebhookOutcome
from control_plane.policy.source.webhook_secret import WebhookSecret

BURST = 10
"""Maximum number of authentic deliveries that are accepted at once after a quiet period."""

PER_S = 2.0
"""Maximum sustained rate (1/s) of authentic deliveries, including replays. Further deliveries are rejected; polling
finds the change."""


class PolicyWebhook:
    """Authenticates deliveries, limits their rate, and triggers polls.

    Args:
        secret: the secret shared with the host; None rejects all deliveries.
        wake: requests a poll of the policy source.
        metrics: counts deliveries by outcome.
        clock: returns monotonic time, in seconds.
    """

    def __init__(
        self,
        secret: WebhookSecret | None,
        wake: Callable[[], None],
        metrics: ControlPlaneMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._secret = secret
        self._wake = wake
        self._metrics = metrics
        self._clock = clock
        self._failures = LoginFailures(clock)
        """Failures are counted by address, so that failures of an attacker do not block the repository's host."""
        self._tokens = float(BURST)
        self._since = clock()

    async def receive(self, address: str, signature: str | None, token: str | None, body: AsyncIterator[bytes]) -> None:
        """Accept one delivery from an address. The caller limits the size of the body.

        Raises:
            Problem: webhooks are disabled, there are too many deliveries, or this delivery is not authentic.
        """
        if self._secret is None:
            raise Problem(404, "webhooks are disabled: set PENSTOCK_POLICY_WEBHOOK_SECRET_FILE")
        wait_s = self._failures.wait_s(address)
        if wait_s:
            self._metrics.webhook(WebhookOutcome.TOO_MANY)
            raise Problem(429, f"too many bad deliveries from {address}", {"retry-after": str(wait_s)})
        delivery = self._secret.delivery(signature, token)
        try:
            async for chunk in body:
                delivery.update(chunk)
        except Problem:
            self._metrics.webhook(WebhookOutcome.TOO_LARGE)
            raise
        if not delivery.is_genuine():
            self._failures.note(address)
            self._metrics.webhook(WebhookOutcome.BAD_SIGNATURE)
            raise Problem(401, "the delivery is not signed with the shared secret")
        if not self._take_token():
            self._metrics.webhook(WebhookOutcome.TOO_MANY)
            raise Problem(429, "too many deliveries: polling will find the change", {"retry-after": "5"})
        self._metrics.webhook(WebhookOutcome.ACCEPTED)
        self._wake()

    def _take_token(self) -> bool:
        now = self._clock()
        self._tokens = min(float(BURST), self._tokens + (now - self._since) * PER_S)
        self._since = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
