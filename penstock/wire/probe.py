"""What regions ask each other four times a second, and what they answer: readiness, expected wait, spill credits.

Both ways are signed: a stranger can neither learn how full a region is nor make itself look like an empty one. The
question's nonce is in the answer's signature, so an old answer is worth nothing.
"""

from __future__ import annotations

import msgspec

from penstock.wire.signing import BadSignature, FleetKey, Purpose

HEADER = "x-penstock-probe"

PATH = "/penstock/v1/probe"

MAX_AGE_S = 10.0
"""A question signed longer ago than this (s), or as far ahead, is not answered; clocks may differ by less."""


class Question(msgspec.Struct, frozen=True):
    """One region's agent asks another's."""

    origin: str
    agent: str
    """Name of the asking agent: credits are each agent's own."""
    server: str
    nonce: str
    asked_at: float
    """Unix time (s) at the asker."""
    wanted: dict[str, int] = {}
    """Spill credits that the asker would like, by model."""


class ModelAnswer(msgspec.Struct, frozen=True):
    """How one model does here."""

    ready: bool
    """Some endpoint may take a new request."""
    expected_wait_s: float
    """Time until a slot is free for one more request, in seconds."""
    credits: int = 0
    """Requests that the asker may send beyond the plan, until the credits expire."""


class Answer(msgspec.Struct, frozen=True):
    """What the asked agent says of its region."""

    region: str
    agent: str
    models: dict[str, ModelAnswer]
    credit_ttl_s: float
    """How long the credits may be spent after the answer arrives, in seconds."""


_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)


def ask(question: Question, key: FleetKey) -> str:
    """The value of the probe header."""
    return key.seal(Purpose.PROBE, msgspec.json.encode(question))


def hear(token: str, key: FleetKey, here: str, now: float) -> Question | str:
    """The question in a probe header, or why it gets no answer.

    Args:
        here: the region that is asked.
        now: Unix time, in seconds.
    """
    try:
        question = _questions.decode(key.open(Purpose.PROBE, token))
    except (BadSignature, msgspec.DecodeError) as error:
        return str(error)
    if question.server != here:
        return f"meant for {question.server}, this is {here}"
    if abs(now - question.asked_at) > MAX_AGE_S:
        return f"asked {now - question.asked_at:.1f} s ago; are the clocks right?"
    return question


def reply(answer: Answer, question: Question, key: FleetKey) -> bytes:
    """The body of an answer: its signature, a line end, and the answer."""
    body = msgspec.json.encode(answer)
    return key.sign(Purpose.PROBE_ANSWER, question.nonce.encode() + body).encode() + b"\n" + body


def heard(body: bytes, question: Question, key: FleetKey) -> Answer:
    """The answer to `question`.

    Raises:
        BadSignature: it is not an answer of the asked region to this question.
    """
    signature, _, content = body.partition(b"\n")
    key.check(Purpose.PROBE_ANSWER, question.nonce.encode() + content, signature.decode("latin-1"))
    try:
        answer = _answers.decode(content)
    except msgspec.DecodeError as error:
        raise BadSignature(f"a signed answer that is not one: {error}") from None
    if answer.region != question.server:
        raise BadSignature(f"asked {question.server}, {answer.region} answered")
    return answer
