"""The end of a chunked body is found however the body is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regional_agent.http.protocol.chunked_end import ChunkedEnd


def end_of(sent: bytes, cuts: list[int]) -> int:
    """The offset in `sent` after the body, which is sent in parts; -1 if the end is missing."""
    body, begins = ChunkedEnd(), 0
    for cut in [*sorted(cut for cut in cuts if cut < len(sent)), len(sent)]:
        found = body.find(sent[begins:cut], 0)
        if found >= 0:
            return begins + found
        begins = cut
    return -1


@given(
    st.lists(st.binary(min_size=1, max_size=300)),
    st.sampled_from([b"", b"X: y\r\n", b"Long: " + b"z" * 100 + b"\r\nA: b\r\n"]),
    st.sampled_from([b"", b";a=b", b";" + b"c" * 100]),
    st.lists(st.integers(0, 3000)),
)
def test_the_end_is_found(chunks: list[bytes], trailers: bytes, extension: bytes, cuts: list[int]) -> None:
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    body = framed + b"0%b\r\n%b\r\n" % (extension, trailers)
    assert end_of(body + b"GET / HTTP/1.1\r\n\r\n", cuts) == len(body)
    assert end_of(body[:-1], cuts) == -1


@pytest.mark.parametrize("malformed", [b"", b"x\r\n", b"\r\n", b"-1\r\nabc\r\n0\r\n\r\n", b"f" * 100])
def test_malformed_framing_has_no_end(malformed: bytes) -> None:
    assert ChunkedEnd().find(malformed, 0) == -1
