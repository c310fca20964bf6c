"""The events of a stream do not depend on how it is cut into pieces, nor on its line endings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lab.replay.sse import EventStream

LINE = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]), max_size=20)
EVENTS = st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=6)
"""Events, each of the lines of its data."""

NEWLINE = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def cut_streams(draw: st.DrawFn) -> tuple[list[list[str]], list[bytes]]:
    """Events, and the pieces in which their bytes arrive."""
    events = draw(EVENTS)
    newline = draw(NEWLINE)
    text = ""
    for lines in events:
        extra = draw(st.sampled_from(["", ": a comment" + newline, "id: 7" + newline, "data-like: x" + newline]))
        text += extra + "".join(f"data: {line}{newline}" for line in lines) + newline
        text += draw(st.sampled_from(["", newline]))
    raw = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    return events, [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


@given(cut_streams())
def test_the_cuts_do_not_matter(stream: tuple[list[list[str]], list[bytes]]) -> None:
    events, pieces = stream
    parser = EventStream()
    received = [data for piece in pieces for data in parser.feed(piece)]
    assert received == ["\n".join(lines).encode() for lines in events]
