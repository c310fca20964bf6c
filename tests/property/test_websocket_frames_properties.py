"""The text messages that are read from a server's frames, in any fragmentation and any reads."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from regional_agent.websocket import websocket_frames
from regional_agent.websocket.websocket_frames import BINARY, CLOSE, CONTINUATION, TEXT, FollowedFrames
from tests.support.websockets import frame

PING = 0x9
MOST = websocket_frames.MAX_TEXT_BYTES

messages = st.lists(
    st.tuples(
        st.sampled_from((TEXT, TEXT, BINARY)),
        st.one_of(st.binary(max_size=300), st.sampled_from((b"", b"x" * 70_000, b"x" * MOST, b"x" * (MOST + 1)))),
        st.booleans(),
    ),
    max_size=6,
)
"""Opcode, payload, and whether it is compressed."""


@given(messages, st.data())
def test_text_messages_are_read_in_any_fragments_and_reads(sent: list[tuple[int, bytes, bool]], data: Any) -> None:
    stream = bytearray()
    for opcode, payload, compressed in sent:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(payload)), max_size=3)))
        parts = [payload[a:b] for a, b in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        for n, part in enumerate(parts):
            first = CONTINUATION if n else opcode
            reserved = 0x40 if compressed and not n else 0
            stream += frame(part, first, mask=b"", final=n == len(parts) - 1, reserved=reserved)
            if data.draw(st.booleans()):
                stream += frame(b"ping", PING, mask=b"")
    expected = [payload for opcode, payload, compressed in sent if opcode == TEXT and not compressed]
    expected = [payload for payload in expected if len(payload) <= MOST]
    stream += frame(b"\x03\xe8", CLOSE, mask=b"") + frame(b"late", mask=b"")
    found: list[bytes] = []
    frames, at = FollowedFrames(found.append), 0
    plain = FollowedFrames()
    while at < len(stream):
        step = data.draw(st.integers(1, 5) | st.integers(1, max(1, len(stream))))
        read = bytes(stream[at : at + step])
        assert frames.feed(read) == plain.feed(read)
        at += step
    assert (found, frames.close_code) == (expected, 1000)
