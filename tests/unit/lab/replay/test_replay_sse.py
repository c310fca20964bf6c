"""Server-sent events: complete events are returned at once, incomplete ones are buffered up to a limit."""

from __future__ import annotations

import pytest

from lab.replay.sse import MAX_EVENT_BYTES, EventStream, EventTooLong


def test_gives_whole_events_and_keeps_the_rest() -> None:
    stream = EventStream()
    assert stream.feed(b'data: {"a":1}\n\ndata: {"b"') == [b'{"a":1}']
    assert stream.feed(b":2}\n") == []
    assert stream.feed(b"\n") == [b'{"b":2}']
    assert stream.feed(b"data: [DONE]\n\n") == [b"[DONE]"]


def test_takes_a_return_and_its_newline_in_two_pieces() -> None:
    stream = EventStream()
    assert stream.feed(b"data: x\r") == []
    assert stream.feed(b"\n\r") == [b"x"]
    assert stream.feed(b"\ndata: y\r\n\r\n") == [b"y"]


def test_skips_comments_and_events_without_data() -> None:
    assert EventStream().feed(b": keep-alive\n\nevent: ping\n\ndata:tight\n\ndata\n\n") == [b"tight", b""]


def test_an_event_without_end_is_refused() -> None:
    stream = EventStream()
    stream.feed(b"data: " + b"x" * (MAX_EVENT_BYTES - 10))
    with pytest.raises(EventTooLong):
        stream.feed(b"x" * 20)
