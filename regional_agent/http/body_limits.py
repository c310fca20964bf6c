"""The limits of one request body: its size, its memory, and the rate at which it has to arrive.

Client connections and the endpoint picker, which receives bodies from Envoy, apply the same limits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from penstock.admission.retry_after import MIN_RETRY_S
from penstock.routing.reasons import Reason, Refusal
from regional_agent.http.kept_bodies import BodyOwner, KeptBodies
from regional_agent.http.limits import Limits
from regional_agent.http.messages import AcceptedHead, Request

_BAD_REQUEST: Final = Reason.BAD_REQUEST
_TOO_LARGE: Final = Reason.BODY_TOO_LARGE
DISPLACED: Final = Refusal(
    Reason.SATURATED,
    "the memory for large bodies is full, and this tenant holds the largest part of it",
    retry_after_s=MIN_RETRY_S,
)
"""The refusal of a request whose body has to make room for the bodies of other tenants."""
NO_ROOM: Final = Refusal(Reason.SATURATED, "too many large bodies at once", retry_after_s=MIN_RETRY_S)
LATE: Final = Refusal(Reason.REQUEST_TIMEOUT, "the request body did not arrive in time")


class HeadPostponed:
    """A head that can be checked only after a wait. Nothing of the body is read meanwhile."""

    def __init__(self, wait: Callable[[], Awaitable[None]]) -> None:
        """`wait` returns when the head should be checked again."""
        self.wait = wait


class HeadAcceptance(Protocol):
    """Decides about requests whose bodies have not arrived."""

    def accept_head(self, request: Request, peer_ip: str) -> AcceptedHead | HeadPostponed | Refusal:
        """Check a request with a large body by its head, before the body is read.

        Args:
            peer_ip: the address of the TCP peer.
        """

    def release_head(self, head: AcceptedHead) -> None:
        """Release what an accepted head still holds. Called when its request has ended."""

    def refuse_receiving(self, request: Request, peer_ip: str) -> Refusal | None:
        """Check a request while its body arrives, periodically, since the policy may have changed since its head.

        Args:
            peer_ip: the address of the TCP peer.
        """

    def reads_whole(self, request: Request) -> bool:
        """Whether a request with a large body can be handled only when its body is complete."""

    def can_start_early(self, request: Request) -> bool:
        """Whether a request that does not need its whole body can be handled with the part that has arrived."""


class BodyLimits:
    """Applies the limits to bodies, whose requests `HeadAcceptance` decides about."""

    def __init__(self, limits: Limits, bodies: KeptBodies, acceptance: HeadAcceptance) -> None:
        """Apply `limits`; `bodies` is the memory of all bodies of the agent."""
        self._limits = limits
        self._bodies = bodies
        self._acceptance = acceptance

    def accept(self, request: Request, peer_ip: str) -> Refusal | HeadPostponed | None:
        """Check a request by its head, before its body is read; returns why it is refused or has to wait."""
        limits = self._limits
        if request.length is not None and request.length > limits.max_body_bytes:
            return self._too_large()
        accepted = self._acceptance.accept_head(request, peer_ip)
        if not isinstance(accepted, AcceptedHead):
            return accepted
        request.accepted_head = accepted
        request.needs_whole = self._acceptance.reads_whole(request)
        if request.needs_whole and (request.length or 0) > limits.json_bytes:
            return self._json_too_large()
        return None

    def check(self, request: Request, chunk: bytes) -> Refusal | None:
        """Count a part of a body, and check it; returns why the request is refused.

        The end of a body with a known length is checked with its last part, since an engine that has received the last
        part regards the body as complete.
        """
        received_bytes = request.received_bytes = request.received_bytes + len(chunk)
        if received_bytes > self._limits.max_body_bytes:
            return self._too_large()
        if not request.started:
            return self._json_too_large() if request.needs_whole and received_bytes > self._limits.json_bytes else None
        check = request.body_check
        if check is None:
            return None
        problem = check.feed(chunk) or (check.finish() if received_bytes == request.length else "")
        return Refusal(_BAD_REQUEST, problem) if problem else None

    def keep(self, request: Request, chunk: bytes, owner: BodyOwner) -> bool:
        """Keep a part of a body; returns whether the request may be handled now, before its body is complete.

        It may once the application can handle it, or no more may be kept. The application is asked each time the body
        has doubled, so that the total cost of its search stays linear.
        """
        before = len(request.body)
        self._bodies.keep(request, chunk, owner)
        if request.queued or request.needs_whole:
            return False
        size = len(request.body)
        if size >= self._limits.kept_body_bytes:
            return True
        return before.bit_length() != size.bit_length() and self._acceptance.can_start_early(request)

    def overdue(self, request: Request, waited_s: float, peer_ip: str) -> Refusal | None:
        """Why a request is refused whose body has been arriving for `waited_s` seconds: too slow, or not permitted."""
        if waited_s > self._allowed_s(request, waited_s):
            return LATE
        return None if request.started else self._acceptance.refuse_receiving(request, peer_ip)

    def release(self, request: Request) -> None:
        """Release memory and quota of a request, held since its head. A second call does nothing."""
        if request.accepted_head is not None:
            self._bodies.release(request)
            self._acceptance.release_head(request.accepted_head)

    def _allowed_s(self, request: Request, waited_s: float) -> float:
        """Return the time (s) that the body may have taken until now. A fast start does not permit a stall later."""
        limits = self._limits
        allowed_s, seen_bytes = request.pace or (limits.body_timeout_s, 0)
        earned_s = (request.received_bytes - seen_bytes) / limits.min_body_bytes_per_s
        allowed_s = max(allowed_s, min(allowed_s + earned_s, waited_s + limits.body_timeout_s))
        if not request.started:
            # A request that has not started has no other deadline.
            allowed_s = min(allowed_s, limits.request_timeout_s)
        request.pace = allowed_s, request.received_bytes
        return allowed_s

    def _too_large(self) -> Refusal:
        return Refusal(_TOO_LARGE, f"the body is larger than {self._limits.max_body_bytes} bytes")

    def _json_too_large(self) -> Refusal:
        limit = self._limits.json_bytes
        return Refusal(_TOO_LARGE, f"the JSON body is larger than {limit} bytes (see max_json_bytes)")
