"""The tokens that a stream of one or several answers has delivered, as the parser counts them without a report."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.answers.answer_format import AnswerFormat
from penstock.answers.answer_parser import EVENTS, AnswerParser
from penstock.http.chunk_framing import SIZE_LINES
from penstock.routes.presets.openai import OPENAI_ROUTES

ROUTES = {route.name: route for route in OPENAI_ROUTES}
TEXTS = ["a", "usage", "stop", "[DONE]", 'finish_reason":"stop', "data: é"]
OUTPUTS: list[dict[str, Any]] = [
    *({"content": text} for text in TEXTS),
    {"reasoning_content": "a"},
    {"tool_calls": [{"index": 0, "function": {"arguments": "a"}}]},
]
NO_ANSWER: dict[str, Any] = {"choices": [], "x": 1}

Stream = tuple[list[dict[str, Any]], list[int]]
"""The events of a stream, and the tokens in each of them."""


@st.composite
def streams(draw: st.DrawFn, route: str, answers: int) -> Stream:
    """A stream of `answers` answers whose events are mixed, as the engines send them: with a role first, an end of its
    own or on the last token, tokens without a text, several answers in one event, and events without an answer."""
    is_chat = route == "openai-chat-completions"
    left = [draw(st.integers(0, 5)) for _ in range(answers)]
    awaits_role, unfinished = set(range(answers) if is_chat else ()), set(range(answers))
    ends_on_token, in_one_event = draw(st.booleans()), draw(st.booleans())
    events, counts = [], []
    while unfinished:
        most = len(unfinished) if in_one_event else 1
        order = draw(st.permutations(sorted(unfinished)))
        choices, tokens = [], 0
        for index in order[: draw(st.integers(1, most))]:
            delta: dict[str, Any] = draw(st.sampled_from([{}, {"content": ""}, {"content": None}]))
            finish = None
            if index in awaits_role:
                awaits_role.remove(index)
                delta = {"role": "assistant", "content": ""}
            elif left[index]:
                left[index] -= 1
                finish = "length" if ends_on_token and not left[index] else None
                # Before the first text, an event without one announces the answer.
                empty = [{"content": ""}] if sum(counts) and finish is None else []
                delta = draw(st.sampled_from(OUTPUTS + empty))
                tokens += 1
            else:
                finish = "stop"
            output = {"delta": delta} if is_chat else {"text": next(iter(delta.values()), "")}
            choices.append({"index": index, **output, "finish_reason": finish})
            unfinished -= {index} if finish else set()
        events.append({"choices": choices, "x": draw(st.sampled_from(["", "a"]))})
        counts.append(tokens)
    events += [NO_ANSWER] * draw(st.integers(0, 1))
    return events, counts + [0] * (len(events) - len(counts))


@pytest.mark.parametrize("answers", [1, 2, 3])
@pytest.mark.parametrize("route", ["openai-chat-completions", "openai-completions"])
@given(st.data(), st.sampled_from([(",", ":"), (", ", ": ")]), st.sampled_from(["\n\n", "\r\n\r\n"]))
def test_the_delivered_tokens_of_a_stream_that_reports_none(
    route: str, answers: int, data: st.DataObject, separators: tuple[str, str], end: str
) -> None:
    events, counts = data.draw(streams(route, answers))
    arrived = data.draw(st.integers(0, len(events)))
    bodies = [f"data: {json.dumps(event, separators=separators)}{end}".encode() for event in events[:arrived]]
    complete = arrived == len(events)
    following = json.dumps(events[arrived], separators=separators) if not complete else "[DONE]"
    closes = data.draw(st.booleans())
    if closes:
        # The close of the connection ends the response, within the next event.
        bodies.append(f"data: {following}".encode()[: data.draw(st.integers(0, 5 + len(following)))])
    elif complete:
        bodies.append(f"data: {following}{end}".encode())
    joined = b"".join(bodies)
    size_bytes = data.draw(st.sampled_from([0, 7, 90, 10_000]))
    if size_bytes:
        bodies = [joined[at : at + size_bytes] for at in range(0, len(joined), size_bytes)]
    parser = AnswerParser(AnswerFormat(ROUTES[route]), EVENTS, b"", False)
    parser.choices, parser.needs_end = answers, closes
    for body in bodies:
        relay(parser, body)
    parser.finish(complete=complete or closes)
    assert parser.delivered == sum(counts[:arrived])


def relay(parser: AnswerParser, body: bytes) -> None:
    """Read a part as the relay does: a chunk with its framing, or else the body; the first are held."""
    line = SIZE_LINES[len(body)] if len(body) < len(SIZE_LINES) else b""
    if not (line and parser.skim_chunk(line + body + b"\r\n", len(line))):
        parser.feed(body)
    if not parser.undecided:
        parser.is_beginning = False
