"""What a forwarded request carries from its origin to its server: signed, short-lived, good for one hop of one request.

It is bound to what it was signed for, and each agent takes it once: whoever has seen one can neither ask for something
else with it nor have the same run again.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from penstock.policy.geography import Location
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, mask
from penstock.routing.reasons import Reason, Refusal
from penstock.wire.signing import BadSignature, FleetKey, Purpose

HEADER = "x-penstock-route"

MAX_HOPS = 1
"""A server never forwards again: origin to server is the only hop there is."""

CLOCK_SKEW_S = 5.0
"""How far two agents' clocks may differ before a fresh context looks expired."""

LIFETIME_S = 30.0
"""How long after signing a context may start a request; a replay later than this is refused."""

MAX_DEADLINE_S = 86_400.0
"""No request lasts longer than a day (s); a deadline beyond is a mistake that would hold a slot for ever."""

BOUND_BYTES = 16 * 1024
"""So much of a body's beginning is signed for, beside the length: some ten microseconds. All of a long prompt takes
more than the rest of its way through an agent."""

REMEMBERED_S = LIFETIME_S + CLOCK_SKEW_S
"""One that was signed by a clock that is ahead is good for as long (s) after its first use."""

MAX_REMEMBERED = 1 << 19
"""Contexts taken within REMEMBERED_S: 15,000 a second, beyond what one agent can serve."""

MAX_HEADER = 512
"""Characters of what goes into the header of a request to an engine."""


class RouteContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of a request as its origin established them."""

    request_id: str
    origin: str
    server: str
    """The region it is meant for; any other refuses it."""
    tenant: str
    data_class: str
    location: Location
    model: str
    residency: tuple[str, ...]
    """The permitted regions by the origin's policy."""
    policy_digest: str
    issued_at: float
    """Unix time (s) at the origin."""
    deadline_at: float
    """Unix time (s) after which nobody waits for the answer."""
    hops: int = 1
    traceparent: str = ""
    content: str = ""
    """`content_digest` of the request."""
    body_bytes: int | None = None
    """How long its body is; None where that was not known."""

    def fits(self, method: bytes, target: bytes, body: bytes | bytearray, length: int | None) -> bool:
        """Whether this was signed for the request that has come; see `content_digest`. `length` is its body's."""
        return self.body_bytes in (None, length) and self.content == content_digest(method, target, body)


def content_digest(method: bytes, target: bytes, body: bytes | bytearray) -> str:
    """What binds a context to its request.

    Args:
        target: as it is in the request line.
        body: whole, or at least BOUND_BYTES of it.
    """
    digest = sha256(b"%b %b\n" % (method, target))
    digest.update(body if len(body) <= BOUND_BYTES else memoryview(body)[:BOUND_BYTES])
    return digest.hexdigest()


class Used:
    """Contexts that one agent has taken lately, by numbers that stand for their signatures."""

    def __init__(self) -> None:
        """None yet."""
        self._lately: set[int] = set()
        self._before: set[int] = set()
        self._since = 0.0

    def first(self, token: str, now: float) -> bool:
        """Whether a token that was accepted has not been used here before; from now on (s, monotonic) it has."""
        if now - self._since >= REMEMBERED_S:
            self._before = self._lately if now - self._since < 2 * REMEMBERED_S else set()
            self._lately, self._since = set(), now
        number = hash(token.partition(".")[2])
        if number in self._lately or number in self._before or len(self._lately) >= MAX_REMEMBERED:
            return False
        self._lately.add(number)
        return True


def seal(context: RouteContext, key: FleetKey) -> str:
    """The value of the route header."""
    return key.seal(Purpose.ROUTE, msgspec.json.encode(context))


_decoder = msgspec.json.Decoder(RouteContext)


def accept(token: str, key: FleetKey, policy: Policy, here: str, now: float) -> RouteContext | Refusal:
    """Check a forwarded request for itself at region `here`: who signed it, for whom, when, and may it be here.

    The mask is computed again under this agent's own policy; both it and the origin's must permit `here`, so that a
    server with a newer policy is not talked out of it.
    """
    try:
        context = _decoder.decode(key.open(Purpose.ROUTE, token))
    except (BadSignature, msgspec.DecodeError) as error:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, str(error))
    for text in (context.request_id, context.traceparent):
        if not text.isascii() or not text.isprintable() or len(text) > MAX_HEADER:
            return Refusal(Reason.BAD_ROUTE_CONTEXT, "its request id or trace can be no header's value")
    if context.hops > MAX_HOPS:
        return Refusal(Reason.TOO_MANY_HOPS, f"{context.hops} hops")
    if context.server != here:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, f"meant for {context.server}, this is {here}")
    if not -CLOCK_SKEW_S <= now - context.issued_at <= LIFETIME_S:
        return Refusal(Reason.ROUTE_CONTEXT_EXPIRED, f"signed {now - context.issued_at:.1f} s ago")
    if now > context.deadline_at + CLOCK_SKEW_S:
        return Refusal(Reason.DEADLINE_PASSED, "nobody waits for the answer any more")
    if context.deadline_at - context.issued_at > MAX_DEADLINE_S:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, "a deadline more than a day away")
    facts = RequestFacts(context.tenant, context.data_class, context.location)
    refusal = refuse_here(policy, facts, here)
    if refusal is not None:
        return refusal
    if here not in context.residency:
        return Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {here} by the policy of {context.origin}")
    return context


def refuse_here(policy: Policy, facts: RequestFacts, here: str) -> Refusal | None:
    """Why a forwarded request may not be served at region `here` under a policy; None where it may."""
    verdict = mask(policy, facts)
    if isinstance(verdict, Refusal):
        return verdict
    if here not in verdict.permitted.regions:
        return Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {here}", verdict.rejected)
    return None
