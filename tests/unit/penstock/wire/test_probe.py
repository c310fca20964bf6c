import msgspec
import pytest

from penstock.wire.probe import (
    ModelReadiness,
    ProbeRequest,
    ProbeResponse,
    open_request,
    open_response,
    seal_request,
    seal_response,
)
from penstock.wire.route_context import CLOCK_SKEW_S
from penstock.wire.signing import BadSignature, FleetKey, Purpose

KEY, STRANGER = FleetKey(b"k" * 32), FleetKey(b"s" * 32)
QUESTION = ProbeRequest("eu-es", "agent-1", "eu-de", "nonce", 1000.0, {"m": 5})
ANSWER = ProbeResponse("eu-de", "agent-2", {"m": ModelReadiness(True, 0.25, 3)}, 0.75)


def test_a_question_arrives_whole() -> None:
    assert open_request(seal_request(QUESTION, KEY), KEY, "eu-de", 1000.0 + CLOCK_SKEW_S) == QUESTION


@pytest.mark.parametrize(
    ("token", "here", "now", "says"),
    [
        (seal_request(QUESTION, STRANGER), "eu-de", 1000.0, "does not match"),
        (seal_request(QUESTION, KEY)[:-2], "eu-de", 1000.0, "does not match"),
        ("", "eu-de", 1000.0, "does not match"),
        (KEY.seal(Purpose.PROBE, b"[]"), "eu-de", 1000.0, "Expected `object`"),
        (KEY.seal(Purpose.ROUTE, msgspec.json.encode(QUESTION)), "eu-de", 1000.0, "does not match"),
        (seal_request(QUESTION, KEY), "eu-gb", 1000.0, "meant for eu-de, this is eu-gb"),
        (seal_request(QUESTION, KEY), "eu-de", 1005.5, "check that the clocks"),
        (seal_request(QUESTION, KEY), "eu-de", 994.5, "check that the clocks"),
    ],
)
def test_a_question_that_is_not_for_us_is_refused_with_the_reason(token: str, here: str, now: float, says: str) -> None:
    answer = open_request(token, KEY, here, now)
    assert isinstance(answer, str)
    assert says in answer


def test_an_answer_arrives_whole() -> None:
    assert open_response(seal_response(ANSWER, QUESTION, KEY), QUESTION, KEY) == ANSWER


@pytest.mark.parametrize(
    "body",
    [
        seal_response(ANSWER, QUESTION, STRANGER),
        seal_response(ANSWER, msgspec.structs.replace(QUESTION, nonce="older"), KEY),
        seal_response(msgspec.structs.replace(ANSWER, region="eu-gb"), QUESTION, KEY),
        seal_response(ANSWER, QUESTION, KEY).replace(b'"credits":3', b'"credits":9'),
        seal_response(ANSWER, QUESTION, KEY).partition(b"\n")[2],
        KEY.sign(Purpose.PROBE_ANSWER, b"nonce{}").encode() + b"\n{}",
        KEY.sign(Purpose.PROBE, b"nonce" + msgspec.json.encode(ANSWER)).encode() + b"\n" + msgspec.json.encode(ANSWER),
        b"",
    ],
)
def test_spoofed_replayed_and_changed_answers_are_not_believed(body: bytes) -> None:
    with pytest.raises(BadSignature):
        open_response(body, QUESTION, KEY)
