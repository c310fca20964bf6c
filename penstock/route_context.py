"""What a forwarded request carries from its origin to its server: signed, short-lived, good for one hop."""

from __future__ import annotations

import msgspec

from penstock.geography import Location
from penstock.policy import Policy
from penstock.reasons import Reason, Refusal
from penstock.residency import RequestFacts, mask
from penstock.signing import BadSignature, FleetKey, Purpose

HEADER = "x-penstock-route"

MOST_HOPS = 1
"""A server never forwards again: origin to server is the only hop there is."""

CLOCK_SKEW_S = 5.0
"""How far two agents' clocks may differ before a fresh context looks expired."""

LIFETIME_S = 30.0
"""How long after signing a context may start a request; a replay later than this is refused."""

LONGEST_DEADLINE_S = 86_400.0
"""No request lasts longer than a day (s); a deadline beyond is a mistake that would hold a slot for ever."""

LONGEST_HEADER = 512
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
        if not text.isascii() or not text.isprintable() or len(text) > LONGEST_HEADER:
            return Refusal(Reason.BAD_ROUTE_CONTEXT, "its request id or trace can be no header's value")
    if context.hops > MOST_HOPS:
        return Refusal(Reason.TOO_MANY_HOPS, f"{context.hops} hops")
    if context.server != here:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, f"meant for {context.server}, this is {here}")
    if not -CLOCK_SKEW_S <= now - context.issued_at <= LIFETIME_S:
        return Refusal(Reason.ROUTE_CONTEXT_EXPIRED, f"signed {now - context.issued_at:.1f} s ago")
    if now > context.deadline_at + CLOCK_SKEW_S:
        return Refusal(Reason.DEADLINE_PASSED, "nobody waits for the answer any more")
    if context.deadline_at - context.issued_at > LONGEST_DEADLINE_S:
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
