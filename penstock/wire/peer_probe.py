"""Probes between regions, four a second: a request for spill credits, and a response with readiness, wait and credits.

Both messages are signed for the other agent alone, so that an outsider can neither query the load of a region nor
impersonate an idle region. The response's signature covers the request's nonce, which makes a replayed response
invalid. A request that is replayed within the clock skew is answered again: it replaces the grant to its sender by an
older grant until the sender's next probe. Another process cannot use the credits, since route contexts are signed. A
request has the certificate of its sender. The certificate of the receiver is fetched before the first probe
(`penstock.wire.identity.PATH`), and again whenever the receiver rejects a signature with status 401.
"""

from __future__ import annotations

import msgspec

from penstock.health.engines.engine_facts import MAX_CONTEXT_TOKENS
from penstock.routing.prefixes.prefix_sketch import decode_sketch, digest_of
from penstock.routing.spill_credits import MAX_WANTED
from penstock.wire.agent_question import open_answer, open_question, require_region, seal_answer
from penstock.wire.peer_keys import BadSignature, Keyring, PeerKeys, Purpose

HEADER = "x-penstock-probe"

PATH = "/penstock/v1/probe"

MAX_EXPECTED_WAIT_S = 3600.0
"""Maximum expected wait (s) in a response. Also sent for an infinite wait, because JSON has no infinity."""

MAX_CREDIT_TTL_S = 60.0
"""Maximum lifetime (s) of spill credits in a response."""


MAX_SLOTS = 10_000_000
"""Maximum number of slots of a region in a response."""

NO_BURST = (0, 0.0)
"""What a region without burst endpoints for a model offers."""


class PeerProbeRequest(msgspec.Struct, frozen=True):
    """A probe request from an agent of one region to an agent of another."""

    origin: str
    agent: str
    """Name of the requesting agent: credits are granted to a single agent."""
    server: str
    nonce: str
    sent_at: float
    """Unix time (s) when the request was signed, by the requesting agent's clock."""
    wanted: dict[str, int] = {}
    """Spill credits that the requesting agent asks for, by model."""
    prefix_digest: int = 0
    """Digest of the sketch of prompt beginnings that the requesting agent has of the probed agent; 0 for none."""
    batch_wanted: dict[str, int] = {}
    """Batch credits that the requesting agent asks for, by model."""


class ModelReadiness(msgspec.Struct, frozen=True):
    """Readiness of one model in the probed region."""

    ready: bool
    """Whether at least one endpoint is healthy, not ejected and not draining, even if it is full."""
    expected_wait_s: float
    """Time until a slot is free for one more request, in seconds."""
    credits: int = 0
    """Requests that the requesting agent may send beyond the plan until the credits expire."""
    context_tokens: int = 0
    """Largest context length (tokens) of the region's endpoints for the model; 0 if unknown."""
    batch_credits: int = 0
    """Batch requests that the requesting agent may send until the credits expire."""
    slots: int = 0
    """Concurrent requests that the region's ready endpoints run; 0 if unknown."""
    in_use: int = 0
    """Slots that are in use, awaited, or promised by spill credits: some batch requests start only below a part of the
    slots that is lower than the target utilisation."""
    extends_text: bool = False
    """Whether a ready endpoint can extend a text, so that the region can continue a stream of another one."""
    burst_room: int = 0
    """Requests of other regions that the agent's part of the burst endpoints can serve; earlier releases state none."""
    burst_start_s: float = 0.0
    """Expected time (s) until a server of these endpoints runs; 0 if one runs."""


class PeerProbeResponse(msgspec.Struct, frozen=True):
    """State of the probed region, as one of its agents reports it."""

    region: str
    agent: str
    models: dict[str, ModelReadiness]
    credit_ttl_s: float
    """Lifetime (s) of the credits, from the arrival of the response."""
    accepts_clients: bool = False
    """Whether clients may enter at this agent, by its readiness. Counts for regions without endpoints, whose agents
    forward; earlier releases do not state it."""
    prefix_digest: int = 0
    """Digest of the agent's sketch of prompt beginnings for the requesting region; 0 for none."""
    prefixes: bytes = b""
    """The sketch, if its digest is not that of the request."""
    burst_only: dict[str, tuple[int, float]] = {}
    """`burst_room` and `burst_start_s` of the models of which the region has burst endpoints alone; they are not in
    `models`, which are those of endpoints that may become ready. Earlier releases state none."""

    def burst_of(self, model: str) -> tuple[int, float]:
        """Return how many requests burst endpoints can serve, and the expected time (s) until a server of them runs."""
        readiness = self.models.get(model)
        if readiness is None:
            return self.burst_only.get(model, NO_BURST)
        return readiness.burst_room, readiness.burst_start_s


_questions = msgspec.json.Decoder(PeerProbeRequest)
_answers = msgspec.json.Decoder(PeerProbeResponse)


def seal_request(question: PeerProbeRequest, peer_keys: PeerKeys) -> str:
    """Returns the value of the probe header: the signed request."""
    return peer_keys.seal(Purpose.PROBE, msgspec.json.encode(question))


def open_request(token: str, keyring: Keyring, here: str, now: float) -> tuple[PeerProbeRequest, PeerKeys] | str:
    """Returns the request in a probe header and the keys shared with its sender, or the reason for its rejection.

    Args:
        keyring: contains the keys shared with the sender, whose certificate came with the probe.
        here: the region that received the probe.
        now: Unix time, in seconds.

    Raises:
        BadSignature: the sender is unknown, or did not sign the request for this agent.
    """
    return open_question(keyring.open(Purpose.PROBE, token, now), _questions, here, now)


def seal_response(answer: PeerProbeResponse, question: PeerProbeRequest, peer_keys: PeerKeys) -> bytes:
    """Returns the body of a probe response: the signature, a line feed, and the response as JSON."""
    return seal_answer(msgspec.json.encode(answer), question, Purpose.PROBE_ANSWER, peer_keys)


def open_response(body: bytes, question: PeerProbeRequest, peer_keys: PeerKeys) -> PeerProbeResponse:
    """Verifies and decodes the response to `question`.

    Raises:
        BadSignature: the body is not a response of the probed region to this request, or is out of range.
    """
    answer = open_answer(body, question, _answers, Purpose.PROBE_ANSWER, peer_keys)
    if not _is_possible(answer):
        raise BadSignature("the signed probe response has impossible content")
    require_region(answer.region, question, peer_keys)
    return answer


def _is_possible(answer: PeerProbeResponse) -> bool:
    if answer.prefixes and (
        digest_of(answer.prefixes) != answer.prefix_digest or decode_sketch(answer.prefixes) is None
    ):
        return False
    offers = [answer.burst_of(model) for model in (*answer.models, *answer.burst_only)]
    if not all(0 <= room <= MAX_SLOTS and 0.0 <= start_s <= MAX_EXPECTED_WAIT_S for room, start_s in offers):
        return False
    return 0.0 <= answer.credit_ttl_s <= MAX_CREDIT_TTL_S and all(
        0.0 <= readiness.expected_wait_s <= MAX_EXPECTED_WAIT_S
        and 0 <= readiness.credits <= MAX_WANTED
        and 0 <= readiness.batch_credits <= MAX_WANTED
        and 0 <= readiness.slots <= MAX_SLOTS
        and 0 <= readiness.in_use <= MAX_SLOTS
        and 0 <= readiness.context_tokens <= MAX_CONTEXT_TOKENS
        for readiness in answer.models.values()
    )
