"""Webhook deliveries from the host of the policy repository: an authentic one triggers a poll."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable

from control_plane.api.responses import Problem
from control_plane.auth.login_failures import LoginFailures
from control_plane.metrics import ControlPlaneMetrics, WebhookOutcome
from control_plane.policy.source.webhook_secret import WebhookSecret

BURST = 10
"""Genuine deliveries that are heeded at once after a quiet time."""

PER_S = 2.0
"""Genuine deliveries a second that are heeded in the long run, replayed ones among them; those beyond are lost, and
polling sees what they told of."""


class PolicyWebhook:
    """Takes deliveries.

    Args:
        secret: what they are signed with; None takes none.
        wake: makes us look at the policy's source.
        metrics: counts what becomes of deliveries.
        clock: seconds, monotonic.
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
        """By address, so that nobody who guesses crowds out the repository's host."""
        self._room = float(BURST)
        self._since = clock()

    async def receive(self, address: str, signature: str | None, token: str | None, body: AsyncIterator[bytes]) -> None:
        """Take one delivery from an address, whose body is bounded by whoever gives it.

        Raises:
            Problem: none are taken here, too many come, or this one is not from whoever shares the secret.
        """
        if self._secret is None:
            raise Problem(404, "no webhooks are taken here: set PENSTOCK_POLICY_WEBHOOK_SECRET_FILE")
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
            raise Problem(401, "the delivery is not signed with the secret that is shared with this control plane")
        if not self._has_room():
            self._metrics.webhook(WebhookOutcome.TOO_MANY)
            raise Problem(429, "too many deliveries: what this one tells of is seen by polling", {"retry-after": "5"})
        self._metrics.webhook(WebhookOutcome.ACCEPTED)
        self._wake()

    def _has_room(self) -> bool:
        now = self._clock()
        self._room = min(float(BURST), self._room + (now - self._since) * PER_S)
        self._since = now
        if self._room < 1.0:
            return False
        self._room -= 1.0
        return True
