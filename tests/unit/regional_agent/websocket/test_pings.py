"""A Ping frame of a server is answered with its payload, whatever stands around it."""

from __future__ import annotations

import pytest

from regional_agent.websocket.websocket_frames import FollowedFrames, pong_frame, read_head, unmask
from tests.support.comfyui import frame


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_pings_are_reported_between_and_within_messages(step: int) -> None:
    pings, texts = list[bytes](), list[bytes]()
    frames = FollowedFrames(texts.append, pings.append)
    first, last = bytes([0x01, 2]) + b"te", bytes([0x80, 2]) + b"xt"
    # The second is longer than a control frame may be.
    data = (
        frame(9, b"") + first + frame(9, b"within") + last + frame(9, bytes(126)) + frame(9, b"after") + frame(10, b"p")
    )
    for at in range(0, len(data), step):
        frames.feed(data[at : at + step])
    assert (pings, texts, frames.closed) == ([b"", b"within", b"after"], [b"text"], False)


def test_an_answer_is_a_masked_pong() -> None:
    sent = pong_frame(b"payload", b"abcd")
    head = read_head(sent)
    assert head is not None
    assert (head.opcode, head.final, head.mask, head.length) == (10, True, b"abcd", 7)
    assert unmask(sent[head.size :], head.mask, 0) == b"payload"
