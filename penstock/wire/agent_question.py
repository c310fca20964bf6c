"""Signed questions of an agent to an agent of another region, and their answers: probes and queries for objects.

The signature of an answer covers the nonce of its question, which makes a replayed answer invalid.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from penstock.wire.identity import ProcessRole, SpiffeId
from penstock.wire.peer_keys import BadSignature, PeerKeys, Purpose
from penstock.wire.route_context import CLOCK_SKEW_S

_UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class AgentQuestion(Protocol):
    """What every question states."""

    @property
    def origin(self) -> str:
        """Region of the agent that asks."""

    @property
    def agent(self) -> str:
        """Name of the agent that asks."""

    @property
    def server(self) -> str:
        """The region that is asked."""

    @property
    def nonce(self) -> str:
        """A text that no other question of the agent has."""

    @property
    def sent_at(self) -> float:
        """Unix time (s) of the signature, by the clock of the agent that asks."""


QuestionT = TypeVar("QuestionT", bound=AgentQuestion)
AnswerT = TypeVar("AnswerT")


def open_question(
    opened: tuple[bytes, PeerKeys], decoder: msgspec.json.Decoder[QuestionT], here: str, now: float
) -> tuple[QuestionT, PeerKeys] | str:
    """Returns a question and the keys shared with its sender, or the reason for its rejection.

    Args:
        opened: the payload, and the keys by which it is signed.
        here: the region that received the question.
        now: Unix time, in seconds.
    """
    payload, peer_keys = opened
    try:
        question = decoder.decode(payload)
    except _UNDECODABLE as error:
        return str(error)
    signer = peer_keys.peer.id
    if signer != SpiffeId(signer.trust_domain, ProcessRole.AGENT, question.agent, question.origin):
        return f"{signer} may not sign for agent {question.agent} of region {question.origin}"
    if question.server != here:
        return f"meant for {question.server}, this is {here}"
    if not abs(now - question.sent_at) <= CLOCK_SKEW_S:
        return f"signed {now - question.sent_at:.1f} s ago; check that the clocks are synchronised"
    return question, peer_keys


def seal_answer(content: bytes, question: AgentQuestion, purpose: Purpose, peer_keys: PeerKeys) -> bytes:
    """Returns the body of an answer: the signature, a line feed, and the content."""
    return peer_keys.sign(purpose, question.nonce.encode() + content).encode() + b"\n" + content


def open_answer(
    body: bytes,
    question: AgentQuestion,
    decoder: msgspec.json.Decoder[AnswerT],
    purpose: Purpose,
    peer_keys: PeerKeys,
) -> AnswerT:
    """Verifies and decodes the answer to `question`.

    Raises:
        BadSignature: the body is not an answer to this question.
    """
    signature, _, content = body.partition(b"\n")
    peer_keys.check(purpose, question.nonce.encode() + content, signature.decode("latin-1"))
    try:
        return decoder.decode(content)
    except _UNDECODABLE as error:
        raise BadSignature(f"the signed answer cannot be decoded: {error}") from None


def require_region(region: str, question: AgentQuestion, peer_keys: PeerKeys) -> None:
    """Checks the region that an answer states.

    Raises:
        BadSignature: it is not the asked region, or not that of the agent that signed the answer.
    """
    if region != question.server or region != peer_keys.peer.id.region:
        raise BadSignature(f"asked {question.server}, but {region} responded as {peer_keys.peer.id}")
