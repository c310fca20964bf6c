import msgspec
import pytest

from penstock.wire.probe import MAX_AGE_S, Answer, ModelAnswer, Question, ask, hear, heard, reply
from penstock.wire.signing import BadSignature, FleetKey, Purpose

KEY, STRANGER = FleetKey(b"k" * 32), FleetKey(b"s" * 32)
QUESTION = Question("eu-es", "agent-1", "eu-de", "nonce", 1000.0, {"m": 5})
ANSWER = Answer("eu-de", "agent-2", {"m": ModelAnswer(True, 0.25, 3)}, 0.75)


def test_a_question_arrives_whole() -> None:
    assert hear(ask(QUESTION, KEY), KEY, "eu-de", 1000.0 + MAX_AGE_S) == QUESTION


@pytest.mark.parametrize(
    ("token", "here", "now", "says"),
    [
        (ask(QUESTION, STRANGER), "eu-de", 1000.0, "does not match"),
        (ask(QUESTION, KEY)[:-2], "eu-de", 1000.0, "does not match"),
        ("", "eu-de", 1000.0, "does not match"),
        (KEY.seal(Purpose.PROBE, b"[]"), "eu-de", 1000.0, "Expected `object`"),
        (KEY.seal(Purpose.ROUTE, msgspec.json.encode(QUESTION)), "eu-de", 1000.0, "does not match"),
        (ask(QUESTION, KEY), "eu-gb", 1000.0, "meant for eu-de, this is eu-gb"),
        (ask(QUESTION, KEY), "eu-de", 1011.0, "are the clocks right"),
        (ask(QUESTION, KEY), "eu-de", 989.0, "are the clocks right"),
    ],
)
def test_a_question_that_is_not_for_us_is_refused_with_the_reason(token: str, here: str, now: float, says: str) -> None:
    answer = hear(token, KEY, here, now)
    assert isinstance(answer, str)
    assert says in answer


def test_an_answer_arrives_whole() -> None:
    assert heard(reply(ANSWER, QUESTION, KEY), QUESTION, KEY) == ANSWER


@pytest.mark.parametrize(
    "body",
    [
        reply(ANSWER, QUESTION, STRANGER),
        reply(ANSWER, msgspec.structs.replace(QUESTION, nonce="older"), KEY),
        reply(msgspec.structs.replace(ANSWER, region="eu-gb"), QUESTION, KEY),
        reply(ANSWER, QUESTION, KEY).replace(b'"credits":3', b'"credits":9'),
        reply(ANSWER, QUESTION, KEY).partition(b"\n")[2],
        KEY.sign(Purpose.PROBE_ANSWER, b"nonce{}").encode() + b"\n{}",
        KEY.sign(Purpose.PROBE, b"nonce" + msgspec.json.encode(ANSWER)).encode() + b"\n" + msgspec.json.encode(ANSWER),
        b"",
    ],
)
def test_spoofed_replayed_and_changed_answers_are_not_believed(body: bytes) -> None:
    with pytest.raises(BadSignature):
        heard(body, QUESTION, KEY)
