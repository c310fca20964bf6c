"""The question of an agent to an agent of another region, whether it knows where a tenant's object is; and the answer.

Both messages are signed for the other agent alone, as probes are, so that no outsider can find objects. A question that
is replayed within the clock skew is answered again, to the same agent. The receiver knows its sender from probes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.routes.object_locations import MAX_OBJECT_ID_CHARS
from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.route_context import CLOCK_SKEW_S
from penstock.wire.session import BadSignature, Purpose, Session, Sessions

HEADER: Final = "x-penstock-object"

PATH: Final = "/penstock/v1/object"

_Name = Annotated[str, msgspec.Meta(max_length=256)]


class ObjectQuery(msgspec.Struct, frozen=True):
    """A question of an agent of one region to an agent of another."""

    origin: _Name
    agent: _Name
    """Name of the agent that asks."""
    server: _Name
    nonce: _Name
    sent_at: float
    """Unix time (s) when the question was signed, by the clock of the agent that asks."""
    tenant: _Name
    """Owner of the object; an object of another tenant is unknown."""
    object_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_OBJECT_ID_CHARS)]


class ObjectAnswer(msgspec.Struct, frozen=True):
    """What the agent knows of an object in its own region."""

    region: _Name
    model: _Name
    """The model that created the object; empty for an object that is unknown."""


_queries: Final = msgspec.json.Decoder(ObjectQuery)
_answers: Final = msgspec.json.Decoder(ObjectAnswer)


def seal_query(query: ObjectQuery, session: Session) -> str:
    """Returns the value of the header: the signed question."""
    return session.seal(Purpose.OBJECT, msgspec.json.encode(query))


def open_query(token: str, sessions: Sessions, here: str, now: float) -> tuple[ObjectQuery, Session] | str:
    """Returns the question in a header and the session with its sender, or the reason for its rejection.

    Args:
        here: the region that received the question.
        now: Unix time, in seconds.

    Raises:
        BadSignature: the sender is unknown, or did not sign the question for this agent.
    """
    payload, session = sessions.open(Purpose.OBJECT, token, now)
    try:
        query = _queries.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return str(error)
    signer = session.peer.id
    if signer != SpiffeId(signer.trust_domain, ProcessRole.AGENT, query.agent, query.origin):
        return f"{signer} may not sign for agent {query.agent} of region {query.origin}"
    if query.server != here:
        return f"meant for {query.server}, this is {here}"
    if not abs(now - query.sent_at) <= CLOCK_SKEW_S:
        return f"signed {now - query.sent_at:.1f} s ago; check that the clocks are synchronised"
    return query, session


def seal_answer(answer: ObjectAnswer, query: ObjectQuery, session: Session) -> bytes:
    """Returns the body of an answer: the signature, a line feed, and the answer as JSON."""
    body = msgspec.json.encode(answer)
    return session.sign(Purpose.OBJECT_ANSWER, _signed(query, body)).encode() + b"\n" + body


def open_answer(body: bytes, query: ObjectQuery, session: Session) -> ObjectAnswer:
    """Verifies and decodes the answer to `query`.

    Raises:
        BadSignature: the body is not an answer of the asked region to this question.
    """
    signature, _, content = body.partition(b"\n")
    session.check(Purpose.OBJECT_ANSWER, _signed(query, content), signature.decode("latin-1"))
    try:
        answer = _answers.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadSignature(f"the signed answer cannot be decoded: {error}") from None
    if answer.region != query.server or answer.region != session.peer.id.region:
        raise BadSignature(f"asked {query.server}, but {answer.region} responded as {session.peer.id}")
    return answer


def _signed(query: ObjectQuery, content: bytes) -> bytes:
    return query.nonce.encode() + content
