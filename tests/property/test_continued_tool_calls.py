"""A chat with tool calls that is cut at any point and continued is one valid answer, with each call once and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.continuation.continuable_request import (
    CHAT_PATH,
    ContinuableRequest,
    body_with_usage,
    continuable_request,
)
from penstock.continuation.continued_stream import ContinuedStream

PROMPT_TOKENS = 11
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


@dataclass(frozen=True)
class Agentic:
    """An engine that writes a text and then calls tools."""

    text: tuple[str, ...]
    calls: tuple[tuple[str, ...], ...]
    """The arguments of each call, by token."""
    counts: bool
    """Whether the engine states the usage in each chunk on request."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole answer: the name of a call is one."""
        return len(self.text) + sum(1 + len(call) for call in self.calls)

    def stream(self, body: dict[str, Any], number: int) -> bytes:
        """The stream for a request, as the engine with this number sends it."""
        written = ""
        if body.get("continue_final_message"):
            assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
            written = body["messages"][-1]["content"]
        assert body["tools"] == TOOLS
        start = next(n for n in range(len(self.text) + 1) if "".join(self.text[:n]) == written)
        return "".join(self._events(body.get("stream_options") or {}, start, number)).encode()

    def _events(self, options: dict[str, Any], start: int, number: int) -> Iterator[str]:
        prompt, generated = PROMPT_TOKENS + start, 0

        def event(delta: dict[str, Any] | None, finish: str | None = None) -> str:
            chunk: dict[str, Any] = {"id": f"answer-{number}", "created": number, "model": "m", "choices": []}
            if delta is not None:
                chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
            if delta is None or (options.get("continuous_usage_stats") and self.counts):
                chunk["usage"] = usage(prompt, generated)
            return f"data: {json.dumps(chunk)}\n\n"

        yield event({"role": "assistant", "content": ""})
        for word in self.text[start:]:
            generated += 1
            yield event({"content": word})
        for index, call in enumerate(self.calls):
            generated += 1
            function = {"name": "look_up", "arguments": ""}
            call_id = f"call-{number}-{index}"
            yield event({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})
            for part in call:
                generated += 1
                yield event({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
        yield event({}, "tool_calls")
        if options.get("include_usage"):
            yield event(None)
        yield "data: [DONE]\n\n"


def usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def asked(options: dict[str, bool] | None, **fields: Any) -> tuple[ContinuableRequest, bytes]:
    """A request with tools, and its body."""
    body: dict[str, Any] = {
        "model": "m",
        "stream": True,
        "tools": TOOLS,
        "messages": [{"role": "user", "content": "?"}],
    }
    encoded = json.dumps(body | ({"stream_options": options} if options else {}) | fields).encode()
    request = continuable_request(CHAT_PATH, encoded)
    assert not isinstance(request, str)
    return request, encoded


def is_whole(stream: bytes, engine: Agentic, options: dict[str, bool] | None) -> bool:
    """Whether a strict client reads the engine's whole answer from a stream; fails otherwise."""
    *events, rest = stream.decode().split("\n\n")
    assert (rest, events.count("data: [DONE]"), events[-1]) == ("", 1, "data: [DONE]")
    chunks = [json.loads(each.removeprefix("data: ")) for each in events[:-1] if not each.startswith(":")]
    assert len({(each["id"], each["created"]) for each in chunks}) == 1
    choices = [choice for each in chunks for choice in each["choices"]]
    assert [at for at, choice in enumerate(choices) if "role" in choice["delta"]] == [0]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == "".join(engine.text)
    calls: list[dict[str, Any]] = []
    for part in (part for choice in choices for part in choice["delta"].get("tool_calls", ())):
        if "id" in part:
            assert part["index"] == len(calls)
            calls.append({"id": part["id"], "arguments": ""})
        assert part["index"] == len(calls) - 1
        calls[-1]["arguments"] += part["function"]["arguments"]
    assert [each["arguments"] for each in calls] == ["".join(call) for call in engine.calls]
    assert len({each["id"] for each in calls}) == len(calls)
    assert len({each["id"].split("-")[1] for each in calls}) <= 1, "one engine made all calls"
    stated = [each["usage"] for each in chunks if each.get("usage")]
    if options is None:
        assert stated == []
    else:
        assert stated[-1] == usage(PROMPT_TOKENS, engine.tokens)
    return True


PARTS = st.lists(st.sampled_from(('{"city":', '"Köln"', "}", "\\", "[DONE]", "data:")), max_size=4).map(tuple)
ENGINES = st.builds(
    Agentic,
    text=st.lists(st.sampled_from(("Let", " me", " look,", " 🚆")), max_size=4).map(tuple),
    calls=st.lists(PARTS, min_size=1, max_size=3).map(tuple),
    counts=st.booleans(),
)
OPTIONS = st.sampled_from((None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}))


@given(
    engine=ENGINES,
    options=OPTIONS,
    cuts=st.lists(st.floats(0, 1), max_size=3),
    size=st.integers(1, 300),
    how=st.sampled_from(("cut", "error", "abort")),
)
@example(Agentic(("Let",), (('{"city":', '"Köln"', "}"), ()), counts=True), {"include_usage": True}, [0.6], 50, "cut")
@example(Agentic((), (('{"city":', "}"),), counts=False), None, [0.9, 0.5], 300, "abort")
def test_a_continued_chat_has_each_tool_call_once(
    engine: Agentic, options: dict[str, bool] | None, cuts: list[float], size: int, how: str
) -> None:
    request, body = asked(options)
    sent = body_with_usage(request, body)
    continued, relayed, next_body = ContinuedStream(request), b"", sent
    for number, cut in enumerate([*cuts, None]):
        stream = engine.stream(json.loads(next_body), number)
        part = stream if cut is None else stream[: round(cut * (len(stream) - 1))]
        if cut is not None and how != "cut":
            part = part[: part.rfind(b"\n\n") + 2] if b"\n\n" in part else b""
            is_finished = b'"tool_calls"}' in part
            choice = {"index": 0, "delta": {}, "finish_reason": "abort"}
            last = {"error": {"code": 500}} if how == "error" or is_finished else {"choices": [choice]}
            part += b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(last).encode()
        for at in range(0, len(part), size):
            relayed += continued.feed(part[at : at + size])
        assert continued.problem == ""
        if continued.done:
            break
        assert b'"tool_calls"' not in relayed, "the client receives no part of a call that may be generated again"
        following = continued.next_body(sent)
        assert following is not None
        continued.next_stream()
        next_body = following
    assert continued.done
    assert is_whole(relayed, engine, options)


@given(engine=ENGINES, options=OPTIONS, size=st.integers(1, 300))
def test_a_chat_that_is_not_cut_loses_no_event(engine: Agentic, options: dict[str, bool] | None, size: int) -> None:
    request, body = asked(options)
    stream = engine.stream(json.loads(body_with_usage(request, body)), 1)
    continued = ContinuedStream(request)
    relayed = b"".join(continued.feed(stream[at : at + size]) for at in range(0, len(stream), size)) + continued.end()
    assert is_whole(relayed, engine, options)
    without_usage = engine.stream(json.loads(body), 1)
    assert relayed.count(b"\n\n") == without_usage.count(b"\n\n")


@pytest.mark.parametrize(("kib", "is_passed_on"), [(900, False), (1100, True)])
def test_long_tool_calls_are_passed_on_and_not_continued(kib: int, *, is_passed_on: bool) -> None:
    request, body = asked(None)
    engine = Agentic(("Let",), (("x" * (kib * 1024 // 8),) * 8,), counts=False)
    stream = engine.stream(json.loads(body), 1)
    continued = ContinuedStream(request)
    before_end = continued.feed(stream[: stream.rfind(b"data: {")])
    assert (continued.problem != "", b'"tool_calls"' in before_end) == (is_passed_on, is_passed_on)
    assert is_whole(before_end + continued.feed(stream[stream.rfind(b"data: {") :]), engine, None)


def test_a_client_receives_comments_while_a_long_call_is_held() -> None:
    request, body = asked(None)
    stream = Agentic((), (("x",) * 100,), counts=False).stream(json.loads(body), 1)
    continued = ContinuedStream(request)
    before_end = stream[: stream.rfind(b"data: {")]
    relayed = continued.feed(before_end)
    assert relayed.count(b": a tool call is being generated\n\n") == 3
    assert b'"tool_calls"' not in relayed


def test_a_text_beside_a_required_call_is_not_continued() -> None:
    request, body = asked(None, tool_choice="required")
    whole = Agentic(("Let",), (("{}",),), counts=False).stream(json.loads(body), 1)
    only_call = Agentic((), (("{}",),), counts=False).stream(json.loads(body), 1)
    with_text, without = ContinuedStream(request), ContinuedStream(request)
    with_text.feed(whole[:-60])
    without.feed(only_call[:-60])
    assert (with_text.problem != "", without.problem) == (True, "")
    assert without.next_body(body) == body
