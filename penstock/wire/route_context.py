"""The route context of a forwarded request, from its origin to its server: signed and short-lived.

A route context is bound to the content of one request, and each agent accepts it once. A captured context can therefore
neither authorise a different request nor replay the same one.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from penstock.policy.geography import Location
from penstock.policy.policy import Policy
from penstock.policy.residency import RequestFacts, mask
from penstock.routing.reasons import Reason, Refusal
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.peer_keys import BadSignature, Keyring, PeerKeys, Purpose

HEADER = "x-penstock-route"

MAX_HOPS = 1
"""A server never forwards a request again: the only hop is from the origin to the server."""

CLOCK_SKEW_S = 5.0
"""Maximum clock difference (s) between two agents for them to accept each other's probes and route contexts. The bound
is the same for both, so that a region that accepts probes also accepts requests."""

MAX_TRANSIT_S = 1.0
"""Maximum difference (s) between the transit times of a probe and of a request. The signer's clock may be ahead by this
much more for a route context than for a probe."""

LIFETIME_S = 30.0
"""Time (s) after signing within which a context may start a request; a later replay is rejected."""

MAX_DEADLINE_S = 86_400.0
"""Maximum duration (s) of a request: a day. A later deadline is an error that would hold a slot indefinitely."""

BOUND_BYTES = 16 * 1024
"""Length of the body prefix that the signature covers, beside the body's length. Hashing it takes about ten
microseconds; hashing the whole of a long prompt would cost more than the rest of the request's path through an
agent."""

REPLAY_WINDOW_S = LIFETIME_S + CLOCK_SKEW_S + MAX_TRANSIT_S
"""Time (s) for which a used context is stored: its lifetime, if the signer's clock is ahead by the maximum."""

MAX_TRACKED = 1 << 19
"""Maximum number of contexts stored in REPLAY_WINDOW_S: about 15,000 a second, more than one agent can serve."""

MAX_HEADER = 512
"""Maximum length, in characters, of a value that is copied into a header of the upstream request."""


class RouteContext(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of a request as its origin established them."""

    request_id: str
    origin: str
    server: str
    """The region the request is meant for; any other region rejects it."""
    tenant: str
    data_class: str
    location: Location
    model: str
    residency: tuple[str, ...]
    """The regions that the origin's policy permits."""
    policy_digest: str
    issued_at: float
    """Unix time (s) of signing, by the origin's clock."""
    deadline_at: float
    """Unix time (s) after which the client no longer waits for the response."""
    queue_s: float = 0.0
    """Time (s) from `issued_at` for which the request may still wait in an admission queue: the maximum wait less the
    wait in the origin's queue."""
    hops: int = 1
    traceparent: str = ""
    traced: bool = False
    """Whether the origin exports spans: the sampled flag of `traceparent` is then the decision of the origin."""
    key_id: str = ""
    """Identifies the API key of the request, so that the serving region can detect its revocation; empty for none."""
    content: str = ""
    """`content_digest` of the request."""
    body_bytes: int | None = None
    """Length (bytes) of the request's body; None if the client did not state the length."""
    extends_text: bool = False
    """Whether the request continues an answer, which only some kinds of engine support."""
    priority: int | None = None
    """Priority of the request; None from an agent of an earlier release: the policy of the serving region decides."""
    weight: float = 1.0
    """Weight of the tenant among the tenants of its priority."""
    max_use: float = 1.0
    """Part (0-1) of the model's slots up to which the request may start; below 1 for batch requests."""
    preemptions: int = 0
    """Number of times that requests with a priority took the slot of the request, which is batch work."""
    failed_engines: int = 0
    """Number of engines of other regions that failed after they received the request."""
    may_end_engines: bool = False
    """Whether one of them broke the connection or stopped responding."""
    for_burst: bool = False
    """Whether the request has no credit and is to be served by a burst endpoint, or by a slot that is free beyond all
    credits; it waits for neither."""

    def fits(self, method: bytes, target: bytes, body: bytes | bytearray, length: int | None) -> bool:
        """Whether this context was signed for the received request; see `content_digest`. `length` is the body's."""
        return self.body_bytes in (None, length) and self.content == content_digest(method, target, body)


def content_digest(method: bytes, target: bytes, body: bytes | bytearray) -> str:
    """The digest that binds a context to its request.

    Args:
        target: as in the request line.
        body: the whole body, or at least its first BOUND_BYTES.
    """
    digest = sha256(b"%b %b\n" % (method, target))
    digest.update(body if len(body) <= BOUND_BYTES else memoryview(body)[:BOUND_BYTES])
    return digest.hexdigest()


class ReplayGuard:
    """Rejects replayed route contexts of one agent. Stores hashes of signatures in two generations."""

    def __init__(self) -> None:
        self._recent: set[int] = set()
        self._previous: set[int] = set()
        self._since = 0.0

    def first(self, token: str, now: float) -> bool:
        """Marks an accepted token as used at `now` (s, monotonic); False if it was used before, or the memory is
        full."""
        if now - self._since >= REPLAY_WINDOW_S:
            self._previous = self._recent if now - self._since < 2 * REPLAY_WINDOW_S else set()
            self._recent, self._since = set(), now
        number = hash(token.rpartition(".")[2])
        if number in self._recent or number in self._previous or len(self._recent) >= MAX_TRACKED:
            return False
        self._recent.add(number)
        return True


def seal(context: RouteContext, peer_keys: PeerKeys) -> str:
    """Returns the value of the route header: the context, signed for one agent of the serving region."""
    return peer_keys.seal(Purpose.ROUTE, msgspec.json.encode(context))


_decoder = msgspec.json.Decoder(RouteContext)


def accept(token: str, keyring: Keyring, policy: Policy, here: str, now: float) -> RouteContext | Refusal:
    """Validates a forwarded request at region `here`: signature, destination, age, and residency.

    The residency mask is computed again under this agent's own policy. Both that policy and the origin's must permit
    `here`, so that an origin with an older policy cannot override a newer one.
    """
    try:
        payload, peer_keys = keyring.open(Purpose.ROUTE, token, now)
        context = _decoder.decode(payload)
    except (BadSignature, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, str(error))
    return check(context, peer_keys.peer.id, policy, here, now) or context


def check(context: RouteContext, signer: SpiffeId, policy: Policy, here: str, now: float) -> Refusal | None:
    """Returns why region `here` rejects a context that `signer` has signed; None to accept it."""
    if signer.role is not ProcessRole.AGENT or signer.region != context.origin:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, f"{signer} may not sign for region {context.origin}")
    for text in (context.request_id, context.traceparent):
        if not text.isascii() or not text.isprintable() or len(text) > MAX_HEADER:
            return Refusal(Reason.BAD_ROUTE_CONTEXT, "its request id or traceparent is not a valid header value")
    if context.hops > MAX_HOPS:
        return Refusal(Reason.TOO_MANY_HOPS, f"{context.hops} hops")
    if context.server != here:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, f"meant for {context.server}, this is {here}")
    if not -CLOCK_SKEW_S - MAX_TRANSIT_S <= now - context.issued_at <= LIFETIME_S:
        return Refusal(Reason.ROUTE_CONTEXT_EXPIRED, f"signed {now - context.issued_at:.1f} s ago")
    if now > context.deadline_at + CLOCK_SKEW_S:
        return Refusal(Reason.DEADLINE_PASSED, "the request's deadline has passed")
    if context.deadline_at - context.issued_at > MAX_DEADLINE_S:
        return Refusal(Reason.BAD_ROUTE_CONTEXT, "the deadline is more than a day away")
    facts = RequestFacts(context.tenant, context.data_class, context.location)
    refusal = refuse_here(policy, facts, here)
    if refusal is not None:
        return refusal
    if here not in context.residency:
        return Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {here} by the policy of {context.origin}")
    return None


def refuse_here(policy: Policy, facts: RequestFacts, here: str) -> Refusal | None:
    """Returns the refusal if a policy forbids serving a forwarded request at region `here`; None if it permits it.

    Both the data class that the origin states and the one that this policy assigns to the tenant must permit `here`:
    the stricter of two policies decides.
    """
    tenant = policy.tenants.get(facts.tenant)
    readings = [facts]
    if tenant is not None and tenant.data_class != facts.data_class:
        readings.append(RequestFacts(facts.tenant, tenant.data_class, facts.location))
    for reading in readings:
        verdict = mask(policy, reading)
        if isinstance(verdict, Refusal):
            return verdict
        if here not in verdict.permitted.regions:
            return Refusal(Reason.RESIDENCY_DENIED, f"residency forbids {here}", verdict.rejected)
    return None
