"""Probes between regions, four a second: a request for spill credits, and a response with readiness, wait and credits.

Both directions are signed, so that an outsider can neither learn how full a region is nor impersonate an empty one. The
response's signature covers the request's nonce, which makes a replayed response invalid.
"""

from __future__ import annotations

import msgspec

from penstock.wire.route_context import CLOCK_SKEW_S
from penstock.wire.signing import BadSignature, FleetKey, Purpose

HEADER = "x-penstock-probe"

PATH = "/penstock/v1/probe"


class ProbeRequest(msgspec.Struct, frozen=True):
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


class ModelReadiness(msgspec.Struct, frozen=True):
    """Readiness of one model in the probed region."""

    ready: bool
    """At least one endpoint accepts a new request."""
    expected_wait_s: float
    """Time until a slot is free for one more request, in seconds."""
    credits: int = 0
    """Requests that the requesting agent may send beyond the plan until the credits expire."""


class ProbeResponse(msgspec.Struct, frozen=True):
    """State of the probed region, as one of its agents reports it."""

    region: str
    agent: str
    models: dict[str, ModelReadiness]
    credit_ttl_s: float
    """Lifetime (s) of the credits, from the arrival of the response."""


_questions = msgspec.json.Decoder(ProbeRequest)
_answers = msgspec.json.Decoder(ProbeResponse)


def seal_request(question: ProbeRequest, key: FleetKey) -> str:
    """Returns the value of the probe header: the signed request."""
    return key.seal(Purpose.PROBE, msgspec.json.encode(question))


def open_request(token: str, key: FleetKey, here: str, now: float) -> ProbeRequest | str:
    """Returns the request in a probe header, or the reason for its rejection.

    Args:
        here: the region that received the probe.
        now: Unix time, in seconds.
    """
    try:
        question = _questions.decode(key.open(Purpose.PROBE, token))
    except (BadSignature, msgspec.DecodeError) as error:
        return str(error)
    if question.server != here:
        return f"meant for {question.server}, this is {here}"
    if abs(now - question.sent_at) > CLOCK_SKEW_S:
        return f"signed {now - question.sent_at:.1f} s ago; check that the clocks are synchronised"
    return question


def seal_response(answer: ProbeResponse, question: ProbeRequest, key: FleetKey) -> bytes:
    """Returns the body of a probe response: the signature, a line feed, and the response as JSON."""
    body = msgspec.json.encode(answer)
    return key.sign(Purpose.PROBE_ANSWER, question.nonce.encode() + body).encode() + b"\n" + body


def open_response(body: bytes, question: ProbeRequest, key: FleetKey) -> ProbeResponse:
    """Verifies and decodes the response to `question`.

    Raises:
        BadSignature: the body is not a response of the probed region to this request.
    """
    signature, _, content = body.partition(b"\n")
    key.check(Purpose.PROBE_ANSWER, question.nonce.encode() + content, signature.decode("latin-1"))
    try:
        answer = _answers.decode(content)
    except msgspec.DecodeError as error:
        raise BadSignature(f"the signed probe response cannot be decoded: {error}") from None
    if answer.region != question.server:
        raise BadSignature(f"probed {question.server}, but {answer.region} responded")
    return answer
