import time

import msgspec
import pytest

from penstock.routing.prefixes.prefix_sketch import digest_of
from penstock.wire.peer_keys import BadSignature, Purpose
from penstock.wire.peer_probe import (
    ModelReadiness,
    PeerProbeRequest,
    PeerProbeResponse,
    open_request,
    open_response,
    seal_request,
    seal_response,
)
from tests.support.identities import agent_keyring, introduce

CLOCK_SKEW_S = 5.0
"""As documented, and not imported: a test fails if a tuned constant changes."""

NOW = time.time()
SENDER, RECEIVER, STRANGER = agent_keyring("eu-es"), agent_keyring("eu-de", "agent-2"), agent_keyring("eu-gb")
TO_RECEIVER, TO_SENDER = introduce(SENDER, RECEIVER), introduce(RECEIVER, SENDER)
STRANGER_TO_RECEIVER, STRANGER_TO_SENDER = introduce(STRANGER, RECEIVER), introduce(STRANGER, SENDER)
QUESTION = PeerProbeRequest("eu-es", "agent-1", "eu-de", "nonce", NOW, {"m": 5})
ANSWER = PeerProbeResponse("eu-de", "agent-2", {"m": ModelReadiness(True, 0.25, 3)}, 0.75)
ENCODED = msgspec.json.encode(ANSWER)


def test_a_question_arrives_whole() -> None:
    opened = open_request(seal_request(QUESTION, TO_RECEIVER), RECEIVER, "eu-de", NOW + CLOCK_SKEW_S)
    assert isinstance(opened, tuple)
    question, peer_keys = opened
    assert question == QUESTION
    assert peer_keys.peer.id == SENDER.identity.id


@pytest.mark.parametrize(
    ("token", "here", "now", "message"),
    [
        (seal_request(QUESTION, STRANGER_TO_RECEIVER), "eu-de", NOW, "eu-gb/agent-1 may not sign for agent agent-1"),
        (TO_RECEIVER.seal(Purpose.PROBE, b"[]"), "eu-de", NOW, "Expected `object`"),
        (seal_request(QUESTION, TO_RECEIVER), "eu-gb", NOW, "meant for eu-de, this is eu-gb"),
        (seal_request(QUESTION, TO_RECEIVER), "eu-de", NOW + 5.5, "check that the clocks"),
        (seal_request(QUESTION, TO_RECEIVER), "eu-de", NOW - 5.5, "check that the clocks"),
    ],
    ids=range(5),
)
def test_a_probe_for_another_region_is_refused_with_the_reason(token: str, here: str, now: float, message: str) -> None:
    answer = open_request(token, RECEIVER, here, now)
    assert isinstance(answer, str)
    assert message in answer


@pytest.mark.parametrize(
    "token",
    ["", seal_request(QUESTION, TO_RECEIVER)[:-2], TO_RECEIVER.seal(Purpose.ROUTE, msgspec.json.encode(QUESTION))],
    ids=["none", "cut", "another purpose"],
)
def test_a_question_without_a_valid_signature_is_refused(token: str) -> None:
    with pytest.raises(BadSignature):
        open_request(token, RECEIVER, "eu-de", NOW)


def test_an_answer_arrives_whole() -> None:
    assert open_response(seal_response(ANSWER, QUESTION, TO_SENDER), QUESTION, TO_RECEIVER) == ANSWER


@pytest.mark.parametrize(
    "body",
    [
        seal_response(ANSWER, QUESTION, STRANGER_TO_SENDER),
        seal_response(ANSWER, msgspec.structs.replace(QUESTION, nonce="older"), TO_SENDER),
        seal_response(msgspec.structs.replace(ANSWER, region="eu-gb"), QUESTION, TO_SENDER),
        seal_response(ANSWER, QUESTION, TO_SENDER).replace(b'"credits":3', b'"credits":9'),
        seal_response(ANSWER, QUESTION, TO_SENDER).partition(b"\n")[2],
        TO_SENDER.sign(Purpose.PROBE_ANSWER, b"nonce{}").encode() + b"\n{}",
        TO_SENDER.sign(Purpose.PROBE, b"nonce" + ENCODED).encode() + b"\n" + ENCODED,
        seal_response(msgspec.structs.replace(ANSWER, prefixes=b"x" * 10, prefix_digest=1), QUESTION, TO_SENDER),
        seal_response(
            msgspec.structs.replace(ANSWER, prefixes=b"xyz", prefix_digest=digest_of(b"xyz")), QUESTION, TO_SENDER
        ),
        seal_response(msgspec.structs.replace(ANSWER, burst_only={"n": (-1, 0.0)}), QUESTION, TO_SENDER),
        seal_response(msgspec.structs.replace(ANSWER, burst_only={"n": (1, 1e9)}), QUESTION, TO_SENDER),
        b"",
    ],
    ids=range(12),
)
def test_spoofed_replayed_and_changed_answers_are_not_believed(body: bytes) -> None:
    with pytest.raises(BadSignature):
        open_response(body, QUESTION, TO_RECEIVER)
