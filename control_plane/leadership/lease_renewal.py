"""Renews the leader's lease in a thread, so that no work on the event loop delays a renewal.

The thread renews only while the event loop has permitted it recently: a leader whose event loop has stopped for good
loses its lease, and another control plane is elected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from adapters.store.config_store import LeaseLost, StoreError
from penstock.leadership.leadership_states import PROOF_MARGIN_S, RENEW_S

RETRY_S = 0.2
"""Time (s) before a failed renewal is retried."""

PERMIT_S = 10.0
"""Time (s) for which the event loop permits renewals at a time: the longest stall of the event loop that a leadership
outlasts. The snapshot of the fleet loses its weight after 15 s."""

_log = structlog.get_logger(__name__)


class LeaseRenewal:
    """Renews one lease until it is stopped, the lease is lost, or the lease may have expired.

    Args:
        renew: renews the lease within a time limit (s), in the calling thread; raises LeaseLost or StoreError.
        ttl_s: time to live (s) of the lease.
        sent_at: clock (s) before the lease was requested.
        clock: monotonic time (s).
        on_lost: called in the thread when the store reports that the lease is lost.
    """

    def __init__(
        self,
        renew: Callable[[float], None],
        *,
        ttl_s: float,
        sent_at: float,
        clock: Callable[[], float],
        on_lost: Callable[[], None],
    ) -> None:
        self._renew = renew
        self._ttl_s = ttl_s
        self._clock = clock
        self._on_lost = on_lost
        self._stopped = threading.Event()
        self._permitted_until = clock() + PERMIT_S
        self.sent_at = sent_at
        """Clock (s) before the last successful renewal: the lease is valid for at least its time to live from then."""
        self.lost = False
        """Whether the store reported that the lease is lost."""
        self._thread = threading.Thread(target=self._run, name="lease renewal", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop. A renewal in progress ends without effect on this object's users."""
        self._stopped.set()

    def permit(self) -> None:
        """Permit renewals for PERMIT_S from now. The event loop calls this regularly."""
        self._permitted_until = self._clock() + PERMIT_S

    def _run(self) -> None:
        wait_s = RENEW_S
        while not self._stopped.wait(max(0.0, min(wait_s, self._left_s()))):
            sent_at, left_s = self._clock(), self._left_s()
            if left_s <= 0.0:
                return
            if sent_at > self._permitted_until:
                wait_s = RETRY_S
                continue
            try:
                self._renew(left_s)
            except LeaseLost:
                if not self._stopped.is_set():
                    self.lost = True
                    self._on_lost()
                return
            except StoreError as error:
                _log.warning("lease not renewed", reason=str(error))
                wait_s = RETRY_S
            else:
                # The lease may have expired before a late response arrives, such as after a pause of this process.
                if self._left_s() <= 0.0:
                    return
                self.sent_at = sent_at
                wait_s = RENEW_S

    def _left_s(self) -> float:
        """Return the time (s) for which the lease is proven."""
        return self.sent_at + self._ttl_s - PROOF_MARGIN_S - self._clock()
