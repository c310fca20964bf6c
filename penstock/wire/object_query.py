"""The question of an agent to an agent of another region, whether it knows where a tenant's object is; and the answer.

Both messages are signed for the other agent alone, as probes are, so that no outsider can find objects. A question that
is replayed within the clock skew is answered again, to the same agent. The receiver knows its sender from probes.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from penstock.routes.object_locations import MAX_OBJECT_ID_CHARS
from penstock.wire import agent_question
from penstock.wire.agent_question import open_question, require_region
from penstock.wire.peer_keys import Keyring, PeerKeys, Purpose

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


def seal_query(query: ObjectQuery, peer_keys: PeerKeys) -> str:
    """Returns the value of the header: the signed question."""
    return peer_keys.seal(Purpose.OBJECT, msgspec.json.encode(query))


def open_query(token: str, keyring: Keyring, here: str, now: float) -> tuple[ObjectQuery, PeerKeys] | str:
    """Returns the question in a header and the keys shared with its sender, or the reason for its rejection.

    Args:
        here: the region that received the question.
        now: Unix time, in seconds.

    Raises:
        BadSignature: the sender is unknown, or did not sign the question for this agent.
    """
    return open_question(keyring.open(Purpose.OBJECT, token, now), _queries, here, now)


def seal_answer(answer: ObjectAnswer, query: ObjectQuery, peer_keys: PeerKeys) -> bytes:
    """Returns the body of an answer: the signature, a line feed, and the answer as JSON."""
    return agent_question.seal_answer(msgspec.json.encode(answer), query, Purpose.OBJECT_ANSWER, peer_keys)


def open_answer(body: bytes, query: ObjectQuery, peer_keys: PeerKeys) -> ObjectAnswer:
    """Verifies and decodes the answer to `query`.

    Raises:
        BadSignature: the body is not an answer of the asked region to this question.
    """
    answer = agent_question.open_answer(body, query, _answers, Purpose.OBJECT_ANSWER, peer_keys)
    require_region(answer.region, query, peer_keys)
    return answer
