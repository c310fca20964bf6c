"""The messages of WebSocket clients: a refused model reaches no engine, whatever the frames are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.routing.reasons import Reason, Refusal
from regional_agent.websocket.client_messages import (
    MAX_FRAMES,
    MAX_HELD_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_REFUSED,
    ClientMessages,
    Violation,
)
from regional_agent.websocket.websocket_frames import (
    BINARY,
    CONTINUATION,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    TEXT,
    TOO_BIG,
)
from tests.support.websockets import frame

PING, CLOSE = 0x9, 0x8
POINTERS = ("/session/model", "/model")


def permits(model: str) -> Refusal | None:
    return None if model == "good" else Refusal(Reason.MODEL_NOT_FOUND, model)


def update(model: str = "good", **more: object) -> bytes:
    return json.dumps({"type": "session.update", "session": {"model": model, **more}}).encode()


def forwarded(*reads: bytes) -> tuple[bytes, list[str]]:
    """What is forwarded, and the details of the refusals."""
    messages = ClientMessages(POINTERS, permits)
    sent, refused = b"", list[str]()
    for read in reads:
        data, refusals = messages.feed(read)
        sent += data
        refused += [refusal.detail for refusal in refusals]
    return sent, refused


def violation(*reads: bytes) -> int:
    """The close code of a violation."""
    with pytest.raises(Violation) as raised:
        forwarded(*reads)
    return raised.value.code


def fragments(payload: bytes, size: int, opcode: int = TEXT) -> bytes:
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    return b"".join(
        frame(part, CONTINUATION if index else opcode, final=index == len(parts) - 1)
        for index, part in enumerate(parts)
    )


ALLOWED = [
    frame(update()),
    frame(b'{"type": "session.update", "session": {"instructions": "model"}}'),
    frame(b'{"type": "session.update", "session": {"model": null}}'),
    frame(b'{"session": {"tools": [{"parameters": {"properties": {"model": {"type": "string"}}}}]}}'),
    frame(b'{"session": []}') + frame(b"[]"),
    fragments(update(), 3),
    frame(b"\x00\x01sound", BINARY),
    frame(b"", BINARY),
    fragments(b"sound" * 50_000, 1_000, BINARY),
    frame(update(), BINARY),
    frame(json.dumps({"type": "input_audio_buffer.append", "audio": "A" * 200_000}).encode()),
    frame(b"\x03\xe8bye", CLOSE),
    frame(update(), mask=b"\0\0\0\0"),
]


@pytest.mark.parametrize("data", ALLOWED)
def test_messages_pass_unchanged(data: bytes) -> None:
    assert forwarded(data) == (data, [])


def test_control_frames_pass_messages_that_are_not_complete() -> None:
    begin, ping = frame(update()[:5], final=False), frame(b"", PING)
    end = frame(update()[5:], CONTINUATION)
    assert forwarded(begin + ping + end) == (ping + begin + end, [])


REFUSED = [
    frame(update("bad")),
    frame(b'{"model": "bad"}'),
    frame(b'{"session": {"mod\\u0065l": "bad"}}'),
    frame(b'{"session": {"model": "good", "model": "bad"}}'),
    frame(b'{"session": {"model": "good"}, "session": {"model": "bad"}}'),
    frame(b'{"Session": {"model": "bad"}}'),
    frame(b'{"\xc5\xbfession": {"model": "bad"}}'),
    frame(b'{"session": {"MODEL": "bad"}}'),
    frame(b'{"session": {"model": ["bad"]}}'),
    frame(b'{"session": {"model": "bad"}') + b"",
    frame(b"not JSON"),
    frame(b"\xff\xfe"),
    frame(b""),
    fragments(update("bad"), 1),
    frame(update("bad"), BINARY),
    frame(b" \n" + update("bad"), BINARY),
    frame(b"\xef\xbb\xbf" + update("bad"), BINARY),
    frame(update("bad").decode().encode("utf-16"), BINARY),
    frame(update("bad").decode().encode("utf-16-le"), BINARY),
    frame(update("bad").decode().encode("utf-32-be"), BINARY),
]


@pytest.mark.parametrize("data", REFUSED)
def test_a_refused_message_is_dropped_and_others_pass(data: bytes) -> None:
    sent, refused = forwarded(data, frame(update()))
    assert sent == frame(update())
    assert len(refused) == 1


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(update(), mask=b""), PROTOCOL_ERROR),
        (frame(update(), reserved=0x40), PROTOCOL_ERROR),
        (frame(update(), 0x3), PROTOCOL_ERROR),
        (frame(update(), 0xB), PROTOCOL_ERROR),
        (frame(update(), CONTINUATION), PROTOCOL_ERROR),
        (frame(b"{", final=False) + frame(update()), PROTOCOL_ERROR),
        (frame(b"", PING, final=False), PROTOCOL_ERROR),
        (frame(b"x" * 126, PING), PROTOCOL_ERROR),
        (b"\x81\xff" + b"\xff" * 12, PROTOCOL_ERROR),
        (frame(update("good", instructions="x" * MAX_MESSAGE_BYTES)), TOO_BIG),
        (fragments(update("bad", instructions="x" * MAX_MESSAGE_BYTES), 5_000), TOO_BIG),
        (frame(b'{"a": "' + b"x" * MAX_MESSAGE_BYTES + b'", "session": {"mod\\u0065l": "bad"}}'), TOO_BIG),
        (frame(b'{"a": "' + b"x" * MAX_MESSAGE_BYTES + b'", "model": "bad"}', BINARY), TOO_BIG),
        (frame(("[" + " " * MAX_MESSAGE_BYTES).encode("utf-16"), BINARY), POLICY_VIOLATION),
        (frame(b'{"model": "bad"}') * (MAX_REFUSED + 1), POLICY_VIOLATION),
        (frame(b"", BINARY) * (MAX_FRAMES + 1), POLICY_VIOLATION),
    ],
)
def test_invalid_data_ends_the_connection(data: bytes, code: int) -> None:
    assert violation(data) == code


def test_a_large_message_never_arrives_whole() -> None:
    data = frame(b'{"a": "' + b"x" * MAX_MESSAGE_BYTES + b'", "session": {"model": "bad"}}')
    messages, sent = ClientMessages(POINTERS, permits), list[bytes]()

    def send() -> None:
        for at in range(len(data)):
            sent.append(messages.feed(data[at : at + 1])[0])

    with pytest.raises(Violation):
        send()
    assert len(b"".join(sent)) < len(data) - len(b': "bad"}}')


def test_the_memory_of_a_message_is_bounded() -> None:
    messages = ClientMessages(POINTERS, permits)
    messages.feed(frame(b"{", final=False))
    empty, most = frame(b"", CONTINUATION, final=False) * 1_000, 0
    for _ in range(100):
        messages.feed(empty)
        most = max(most, len(messages._held))
    assert MAX_HELD_BYTES / 2 < most < MAX_HELD_BYTES + 16


@given(st.lists(st.sampled_from([*ALLOWED, *REFUSED]), max_size=3), st.lists(st.integers(1, 40), max_size=60))
def test_the_result_does_not_depend_on_how_bytes_are_split(frames: list[bytes], sizes: list[int]) -> None:
    data, reads, at = b"".join(frames), [], 0
    for size in sizes:
        reads.append(data[at : at + size])
        at += size
    assert forwarded(*reads, data[at:]) == forwarded(data)
