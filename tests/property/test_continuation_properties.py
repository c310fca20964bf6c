"""A stream that is cut at any point and continued has the same text as the complete stream."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from penstock.continuation.continuable_request import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    body_with_usage,
    continuable_request,
)
from penstock.continuation.continued_stream import ContinuedStream

PROMPT = "How do I get from Berlin to Paris?"
PROMPT_TOKENS = 11


@dataclass(frozen=True)
class Engine:
    """An engine whose response depends on the prompt only."""

    tokens: tuple[str, ...]
    """White space is a token of its own, or the start of one."""
    chat: bool = True
    finishes_alone: bool = False
    """The finish reason has an event of its own, as SGLang sends it; vLLM sends it with the last token."""
    tokens_per_chunk: int = 0
    """Of an engine that states the usage in each chunk on request; 0: it does not, and each chunk has one token."""
    fingerprint: str | None = None
    line_end: str = "\n"
    number: int = 0
    usage_last: bool = False
    """Whether the usage follows the text in an event, as vLLM sends it."""
    is_compact: bool = False
    """Whether the JSON has neither spaces nor escapes that need not be, as vLLM sends it."""

    def stream(self, body: dict[str, Any]) -> bytes:
        text = self._written(body)
        start = next(n for n in range(len(self.tokens) + 1) if "".join(self.tokens[:n]).rstrip() == text.rstrip())
        if not self.chat:
            start = next(n for n in range(len(self.tokens) + 1) if "".join(self.tokens[:n]) == text)
        limit = body.get("max_tokens") or 1000
        tokens = self.tokens[start : start + limit]
        reason = "length" if start + limit < len(self.tokens) else "stop"
        if start + limit == len(self.tokens):
            reason = "length"
        return "".join(self._events(body, tokens, PROMPT_TOKENS + start, reason)).encode()

    def _written(self, body: dict[str, Any]) -> str:
        if not self.chat:
            return str(body["prompt"]).removeprefix(PROMPT)
        if not body.get("continue_final_message"):
            return ""
        assert body["add_generation_prompt"] is False
        assert [message["role"] for message in body["messages"]] == ["user", "assistant"]
        return str(body["messages"][-1]["content"])

    def _events(self, body: dict[str, Any], tokens: tuple[str, ...], prompt: int, reason: str) -> Iterator[str]:
        options = body.get("stream_options") or {}
        counts = options.get("include_usage") and options.get("continuous_usage_stats") and self.tokens_per_chunk

        def used(generated: int) -> dict[str, int] | None:
            return usage(prompt, generated) if counts else None

        if self.chat:
            yield self._event([self._choice("", None, role="assistant")], used(0))
        size = self.tokens_per_chunk or 1
        for start in range(0, len(tokens), size):
            end = min(start + size, len(tokens))
            finish = reason if end == len(tokens) and not self.finishes_alone else None
            yield self._event([self._choice("".join(tokens[start:end]), finish)], used(end))
        if self.finishes_alone or not tokens:
            yield self._event([self._choice(None, reason)], used(len(tokens)))
        if options.get("include_usage"):
            yield self._event([], usage(prompt, len(tokens)))
        yield f"data: [DONE]{self.line_end * 2}"

    def _choice(self, token: str | None, finish: str | None, **delta: str) -> dict[str, Any]:
        added = {} if token is None else {"content": token} if self.chat else {"text": token}
        if self.chat:
            return {"index": 0, "delta": {**delta, **added}, "logprobs": None, "finish_reason": finish}
        return {"index": 0, "text": "", **added, "logprobs": None, "finish_reason": finish}

    def _event(self, choices: list[dict[str, Any]], used: dict[str, int] | None) -> str:
        event: dict[str, Any] = {"id": f"answer-{self.number}", "created": 1000 + self.number, "model": "m"}
        if self.fingerprint is not None:
            event["system_fingerprint"] = f"{self.fingerprint}-{self.number}"
        reported = {} if used is None else {"usage": used}
        fields = {"choices": choices} | reported if self.usage_last else reported | {"choices": choices}
        separators = (",", ":") if self.is_compact else None
        data = json.dumps(event | fields, ensure_ascii=not self.is_compact, separators=separators)
        return f"data: {data}{self.line_end * 2}"


def usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


@dataclass(frozen=True)
class View:
    """A response as parsed by a strict client."""

    text: str
    finish_reason: str
    usage: dict[str, int] | None
    identity: tuple[Any, ...]


def read(stream: bytes, *, chat: bool) -> View:
    *events, rest = stream.decode().replace("\r\n", "\n").split("\n\n")
    assert rest == ""
    assert [event for event in events if event == "data: [DONE]"] == [events[-1]] == ["data: [DONE]"]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    identities = {(c["id"], c["created"], c["model"], c.get("system_fingerprint")) for c in chunks}
    assert len(identities) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    assert len(reasons) == 1
    assert choices[-1]["finish_reason"] is not None
    text = "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)
    if chat:
        assert [number for number, choice in enumerate(choices) if "role" in choice["delta"]] == [0]
    stated = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    counted = [used["completion_tokens"] for used in stated]
    assert counted == sorted(counted)
    return View(text, reasons[0], stated[-1] if stated else None, identities.pop())


WORDS = st.sampled_from((" Take", " the", " train", ",", '"', "\\", "ü", "🚆", "\n", "\n\n", " ", "data:", "[DONE]"))
ENGINES = st.builds(
    Engine,
    tokens=st.lists(WORDS, min_size=1, max_size=12).map(tuple),
    chat=st.booleans(),
    finishes_alone=st.booleans(),
    tokens_per_chunk=st.integers(0, 3),
    fingerprint=st.sampled_from((None, "fp")),
    line_end=st.sampled_from(("\n", "\r\n")),
    usage_last=st.booleans(),
    is_compact=st.booleans(),
)
SIZES: st.SearchStrategy[list[int]] = st.lists(st.integers(1, 200), min_size=1, max_size=5) | st.just([])
"""Sizes (bytes) of the chunks; empty for one event in a chunk."""


OPTIONS = st.sampled_from(
    (
        None,
        {"include_usage": False},
        {"include_usage": True},
        {"include_usage": True, "continuous_usage_stats": True},
        {"include_usage": False, "continuous_usage_stats": True},
    )
)


def request_body(engine: Engine, max_tokens: int | None, options: dict[str, bool] | None) -> bytes:
    body: dict[str, Any] = {"model": "m", "stream": True, "temperature": 0}
    if engine.chat:
        body["messages"] = [{"role": "user", "content": PROMPT}]
    else:
        body["prompt"] = PROMPT
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    if options is not None:
        body["stream_options"] = options
    return json.dumps(body).encode()


def feed(continued: ContinuedStream, stream: bytes, sizes: list[int]) -> bytes:
    """Feed a stream in chunks of these sizes (bytes), the last of which repeats; without sizes, as it is relayed."""
    if not sizes:
        return relay(continued, stream)
    relayed, at, number = b"", 0, 0
    while at < len(stream):
        size = sizes[min(number, len(sizes) - 1)]
        relayed += continued.feed(stream[at : at + size])
        at, number = at + size, number + 1
    return relayed


def relay(continued: ContinuedStream, stream: bytes) -> bytes:
    """Send each event in a chunk of its own, as a connection relays them."""
    relayed = b""
    for event in re.findall(rb".*?(?:\r?\n){2}|.+", stream, re.DOTALL):
        size_line = b"%x\r\n" % len(event)
        sent = continued.next_events.take(size_line + event + b"\r\n", len(size_line))
        if sent:
            relayed += sent
            continue
        continued.catch_up()
        relayed += continued.feed(event)
    continued.catch_up()
    return relayed


def _has_single_spaces(tokens: tuple[str, ...]) -> bool:
    """Whether no two white-space tokens are adjacent, since their number at the end of a chunk is unknown."""
    return all(token.strip() or following.strip() for token, following in pairwise(tokens))


LONG = (" Take", " the", " train", " ", "\u00fc", " train", " the", " train")


@given(
    engine=ENGINES,
    max_tokens=st.none() | st.integers(1, 14),
    options=OPTIONS,
    cuts=st.lists(st.floats(0, 1), min_size=1, max_size=3),
    sizes=SIZES,
    reports=st.booleans(),
)
@example(Engine((" Take", "\n", " the")), 2, {"include_usage": True}, [0.7], [200], False)
@example(Engine((" Take", " the"), finishes_alone=True), 1, {"include_usage": True}, [0.7], [200], False)
@example(Engine((" Take", " the"), finishes_alone=True, tokens_per_chunk=1), 1, None, [0.7], [1], False)
@example(Engine((" Take", " the", " train"), tokens_per_chunk=2), 3, None, [0.7], [1], False)
@example(
    Engine((" Take", "\n"), finishes_alone=True, tokens_per_chunk=3), 13, {"include_usage": True}, [0.97], [99], True
)
@example(
    Engine(LONG, tokens_per_chunk=1, usage_last=True, is_compact=True), 7, {"include_usage": True}, [0.8], [], True
)
@example(Engine(LONG, chat=False, is_compact=True), None, {"include_usage": True}, [0.8, 0.3], [], False)
@example(Engine(LONG[:5] * 2, tokens_per_chunk=1, usage_last=True), None, {"include_usage": True}, [0.49], [], False)
def test_a_continued_stream_equals_an_undisturbed_one(
    engine: Engine,
    max_tokens: int | None,
    options: dict[str, bool] | None,
    cuts: list[float],
    sizes: list[int],
    reports: bool,
) -> None:
    assume(engine.tokens_per_chunk < 2 or not engine.chat or _has_single_spaces(engine.tokens))
    body = request_body(engine, max_tokens, options)
    request = continuable_request(CHAT_PATH if engine.chat else COMPLETIONS_PATH, body)
    assert not isinstance(request, str)
    limit = {"max_tokens": request.max_tokens} if request.max_tokens else {}
    expected = read(engine.stream(json.loads(body) | limit), chat=engine.chat)
    sent = body_with_usage(request, body)

    continued, relayed, next_body = ContinuedStream(request), b"", sent
    for number, cut in enumerate(cuts):
        stream = replace(engine, number=number).stream(json.loads(next_body))
        if number == 0 and request.max_tokens is not None:
            stream = engine.stream(json.loads(sent) | limit)
        part = stream[: round(cut * (len(stream) - 1))]
        if reports:
            part = part[: part.rfind(b"\n\n") + 2] if b"\n\n" in part else b""
            part += b'data: {"error": {"message": "died", "code": 500}}\n\ndata: [DONE]\n\n'
        relayed += feed(continued, part, sizes)
        if continued.done:
            break
        assert bool(continued.failure) == reports
        assert continued.problem == ""
        following = continued.next_body(sent)
        continued.next_stream()
        if following is None:
            relayed += continued.finish_at_limit()
            break
        next_body = following
    else:
        relayed += feed(continued, replace(engine, number=len(cuts)).stream(json.loads(next_body)), sizes)
        assert continued.end() == b""
    assert continued.done
    view = read(relayed, chat=engine.chat)
    assert (view.text, view.finish_reason) == (expected.text, expected.finish_reason)
    assert expected.usage is not None or view.usage is None
    if view.usage is not None or not engine.finishes_alone:
        assert view.usage == expected.usage


@given(engine=ENGINES, options=OPTIONS, sizes=SIZES)
def test_a_stream_that_is_not_cut_has_what_the_client_requested(
    engine: Engine, options: dict[str, bool] | None, sizes: list[int]
) -> None:
    body = request_body(engine, None, options)
    request = continuable_request(CHAT_PATH if engine.chat else COMPLETIONS_PATH, body)
    assert not isinstance(request, str)
    stream = engine.stream(json.loads(body_with_usage(request, body)))
    continued = ContinuedStream(request)
    relayed = feed(continued, stream, sizes) + continued.end()
    assert chunks_of(relayed) == chunks_of(engine.stream(json.loads(body)))


def chunks_of(stream: bytes) -> list[Any]:
    *events, rest = stream.decode().replace("\r\n", "\n").split("\n\n")
    assert rest == ""
    data = [event.removeprefix("data: ") for event in events]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in data]


@given(stream=st.binary(max_size=400), sizes=st.lists(st.integers(1, 50), max_size=5))
@example(b'data: {"choices": [{"delta": {"tool_calls": [{}]}}]}\n\ndata: {"error": 1}', [7])
def test_any_bytes_are_relayed(stream: bytes, sizes: list[int]) -> None:
    request = continuable_request(CHAT_PATH, request_body(Engine(("a",)), None, None))
    assert not isinstance(request, str)
    continued = ContinuedStream(request)
    relayed = feed(continued, stream, sizes)
    rest = continued.end()
    assert relayed + rest == stream or continued.failure
