"""One event stream for a client, made of the streams of the engines that contributed to one answer.

The client receives complete events only, so that a further stream can follow at any time. The end of the answer, from
the first tool call or from the event with `finish_reason` to `[DONE]`, is forwarded as a whole: after a failure within
the end, the answer is continued from the text before the end. Engines can continue a text, but no half of a tool call,
and no answer after a whole one. Requests to engines ask for the usage of each chunk (`body_with_usage`); the client
receives only the usage that it requested.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from penstock.answers.answer_errors import AnswerError, error_in
from penstock.answers.event_splitter import EventSplitter
from penstock.answers.usage_reader import members_of
from penstock.answers.values import CUT_REASONS
from penstock.continuation.answer_transcript import AnswerTranscript
from penstock.continuation.continuable_request import ContinuableRequest, continuation_body
from penstock.continuation.next_events import EXPECTED_TEXT, NextEvents
from penstock.continuation.stream_events import (
    DONE_DATA,
    DONE_EVENT,
    Choice,
    Chunk,
    decode_chunk,
    encode_event,
    engine_failure,
    event_data,
    reported_reason,
    without_usage,
)

MAX_HELD_EVENTS: Final = 16
"""Maximum number of events, from the finish reason on, that are held until `[DONE]`. Engines send one event with the
usage between them."""


MAX_HELD_BYTES: Final = 1024 * 1024
"""Maximum size (bytes) of the events with tool calls that are held: about 4,000 tokens, as vLLM sends them."""

EVENTS_PER_COMMENT: Final = 32
"""Number of held events with tool calls after which the client receives a comment, which keeps its connection open."""

_COMMENT: Final = b": a tool call is being generated\n\n"


class ContinuedStream:
    """Forwards the events of one answer, and rewrites the events of a continuation to extend the first stream."""

    def __init__(self, request: ContinuableRequest) -> None:
        """Start with the first stream of the answer to `request`."""
        self._request = request
        self._splitter = EventSplitter()
        # Chat templates may remove white space at the end of a message.
        self._transcript = AnswerTranscript(strips_space=request.chat)
        self.next_events = NextEvents()
        """Takes events of the first stream that need not be decoded, for `catch_up`."""
        self._is_continuation = False
        self._repeatable_space = ""
        """White space at the end of the text, which the continuation may generate again."""
        self._half_event = b""
        """A malformed event, such as an incomplete event before the error that an agent adds; empty without one."""
        self._held: list[bytes] = []
        """Events of the end of the answer, tool calls included, until the end is complete."""
        self._held_bytes = 0
        """Size (bytes) of the held events with tool calls."""
        self._ends = 0
        """Number of held events from the finish reason on."""
        self._end_with_usage: tuple[int, bytes] | None = None
        """The last held event of the end that had usage beside choices: its place, and the event with this usage. The
        client receives it so unless an event with only usage follows; None without such an event."""
        self.problem = ""
        """Reason why the answer cannot be continued; empty if it can be continued."""
        self.failure = ""
        """Failure of the engine according to the stream itself; empty without a failure."""
        self.reason_elsewhere = ""
        """The reason code by which the agent of a serving region reports the failure; empty if it reports none."""
        self.reported: AnswerError | None = None
        """The error by which the engine reported its failure; None if it reported none."""
        self.error: AnswerError | None = None
        """The error that the client received in place of the end of the answer."""
        self.is_cut = False
        """Whether the client received an answer that the engine ended before its end, by its finish reason."""
        self.done = False
        """Whether the client has received the end of the answer, or an error of its request."""
        self.records = 0
        """Number of events that have arrived, without comments."""
        self.usage_event = b""
        """The last event with usage, whether or not forwarded to the client; empty before the first such event."""

    def feed(self, chunk: bytes) -> bytes:
        """Return the events for the client that `chunk` completes. After a failure, the remaining stream is dropped.

        `catch_up` must have been called since an event was taken.
        """
        events = []
        for event in self._splitter.feed(chunk):
            self.next_events.stop()
            if self.failure:
                break
            events.append(self._pass_on(event))
        if self._splitter.rest:
            self.next_events.stop()
        if self._splitter.overflows:
            self.give_up("an event is too long")
            events.append(self._release())
        elif self.problem and not self._is_continuation and self._end_with_usage is None:
            events.append(self._release_held())
        return b"".join(events)

    def catch_up(self) -> bytes:
        """Count the events that `next_events` has taken as if they had been fed; returns the last one."""
        taken = self.next_events
        texts, last = taken.texts, taken.last
        if texts:
            taken.reset()
            data = event_data(last)
            assert data is not None
            usage = decode_chunk(data).usage
            self.records += len(texts)
            self._transcript.add_texts(texts, None if usage is None else usage.completion_tokens)
            if usage is not None:
                self.usage_event = last
            if problem := self._transcript.length_problem():
                self.give_up(problem)
        return last

    def end(self) -> bytes:
        """End the stream, and return its remainder. An answer without a finish reason is a failure."""
        if not (self.problem or self.failure or self.done or self._ends):
            self.failure = "the stream ended without a finish reason"
        return b"" if self.failure else self._release()

    def give_up(self, problem: str) -> None:
        """Prevent the continuation of the answer, with `problem` as the reason; an earlier reason is kept."""
        self.problem = self.problem or problem
        self.next_events.stop()

    def next_body(self, body: bytes | bytearray) -> bytes | None:
        """Return the body of the request that continues the answer; None if the limit on tokens has been reached.

        Args:
            body: body of the client's request.
        """
        transcript, request = self._transcript, self._request
        if request.max_tokens is not None and transcript.generated_tokens >= request.max_tokens:
            return None
        return continuation_body(request, body, transcript.text, transcript.generated_tokens)

    @property
    def generated_tokens(self) -> int:
        """Approximate number of tokens that the client has received."""
        return self._transcript.base_tokens + self._transcript.stream_tokens

    @property
    def has_text(self) -> bool:
        """Whether `next_body` requires an engine that can extend a text; not all engines can."""
        return bool(self._transcript.text)

    def next_stream(self) -> None:
        """Discard the incomplete part of a failed stream; `feed` receives another stream from now on."""
        self._splitter.take_rest()
        self._release_held()
        self.next_events.stop()
        self.failure = self.reason_elsewhere = ""
        self._is_continuation = True
        self._transcript.next_stream()
        self._repeatable_space = self._transcript.space

    def finish_at_limit(self) -> bytes:
        """Return the end of an answer that has reached the token limit of its request; unknown usage is omitted."""
        transcript, chat = self._transcript, self._request.chat
        self.done = True
        chunk = {"object": "chat.completion.chunk" if chat else "text_completion", **transcript.identity}
        choice: dict[str, Any] = {"index": 0, **({"delta": {}} if chat else {"text": ""}), "finish_reason": "length"}
        end = encode_event(chunk | {"choices": [choice]})
        if self._request.wants_usage and transcript.prompt_tokens is not None:
            usage = _usage(transcript.prompt_tokens, transcript.generated_tokens)
            end += encode_event(chunk | {"choices": [], "usage": usage})
        return end + DONE_EVENT

    def _release(self) -> bytes:
        """Return all held events, incomplete events included, and hold none."""
        return self._release_held() + self._splitter.take_rest()

    def _pass_on(self, event: bytes) -> bytes:
        """Return the event in the form that the client receives; empty if the event is held or dropped."""
        try:
            data = event_data(event)
            if data is None:
                return event
            self.records += 1
            if data == DONE_DATA:
                self.done = True
                return self._release_held() + event
            chunk = decode_chunk(data)
        except ValueError as error:
            if self._half_event or self.problem:
                self.give_up(f"the stream contains more than chunks of a completion: {error}")
                return self._release_held() + event
            self._half_event = event
            return b""
        if self._half_event and (chunk.error is None or not engine_failure(chunk.error)):
            self.give_up("the stream contains a malformed event")
        return self._pass_chunk(event, data, chunk)

    def _pass_chunk(self, event: bytes, data: bytes, chunk: Chunk) -> bytes:
        transcript, received = self._transcript, event
        if not self.problem:
            self.problem = transcript.problem_with(chunk)
        if chunk.error is not None:
            if not self.problem:
                self.failure, self.reason_elsewhere = engine_failure(chunk.error), reported_reason(chunk.error)
            error = error_in(members_of(data) or {})
            if self.failure:
                self.reported = error
                return b""
            self.done, self.error = True, error
            return self._release_held() + event
        choice = chunk.choices[0] if chunk.choices else None
        content = (choice.content or "") if choice is not None else ""
        if self._request.must_call and not content.isspace() and content:
            self.give_up("the request requires a tool call, and the answer contains text")
        if choice is not None and choice.finish_reason in CUT_REASONS:
            if not self.problem:
                self.failure = f"the engine ended it with the finish reason {choice.finish_reason}"
                return b""
            self.is_cut = True
        if chunk.usage is not None and not chunk.choices:
            self._end_with_usage = None
        end_with_usage = b""
        if self._is_continuation:
            content = self._without_repetition(content)
            event, end_with_usage = self._rewrite(data, chunk, content)
        elif b'"usage"' in data:
            event, end_with_usage = self._with_wanted_usage(event, data, chunk)
        if not transcript.identity:
            transcript.identify(chunk)
        if not (self._ends or (choice is not None and choice.finish_reason is not None)):
            end_with_usage = b""
        if self.problem:
            released = self._release_held()
            if not end_with_usage:
                return released + event
            self._held, self._end_with_usage = [event], (0, end_with_usage)
            return released
        if end_with_usage:
            self._end_with_usage = (len(self._held), end_with_usage)
        if self._held or (choice is not None and (choice.finish_reason is not None or choice.calls_tool)):
            return self._hold(event, chunk, choice)
        transcript.add(chunk, content)
        if content and not (self._is_continuation or self._half_event or self._request.must_call):
            self._expect_like(received, event, chunk)
        return event

    def _expect_like(self, received: bytes, event: bytes, chunk: Chunk) -> None:
        """Expect events like one that was received and forwarded, if they differ from it in text and usage alone."""
        assert chunk.choices
        expected = self.next_events.expect(received, event, chunk.choices[0].content or "")
        if not expected:
            return
        try:
            other = decode_chunk(event_data(expected) or b"")
        except ValueError:
            self.next_events.stop()
            return
        if (other.choices or [Choice()])[0].content != EXPECTED_TEXT or not self._transcript.follows(chunk, other):
            self.next_events.stop()

    def _hold(self, event: bytes, chunk: Chunk, choice: Choice | None) -> bytes:
        """Hold an event of the end of the answer; returns what the client receives in its place."""
        self._held.append(event)
        if self._ends or (choice is not None and choice.finish_reason is not None):
            self._ends += 1
            if self._ends > MAX_HELD_EVENTS:
                self.give_up("too many events follow the finish reason")
            return b""
        transcript, role_sent = self._transcript, self._transcript.role_sent
        transcript.add(chunk, "")
        # A failure drops the held events; the continuation then sends the role.
        transcript.role_sent = role_sent
        self._held_bytes += len(event)
        if self._held_bytes > MAX_HELD_BYTES:
            self.give_up(f"the tool calls are longer than {MAX_HELD_BYTES} bytes")
        return b"" if len(self._held) % EVENTS_PER_COMMENT else _COMMENT

    def _wants_usage_of(self, chunk: Chunk) -> bool:
        return self._request.wants_usage and (self._request.wants_continuous_usage or not chunk.choices)

    def _with_wanted_usage(self, event: bytes, data: bytes, chunk: Chunk) -> tuple[bytes, bytes]:
        """Return the event without usage that the client did not request, and with the usage of the whole answer.

        The first is empty if the event contains nothing else, the second if the client receives the usage elsewhere.
        """
        if chunk.usage is not None:
            self.usage_event = event
        elif self._request.wants_usage:
            # OpenAI sends `"usage": null` in each chunk but the last: forward the event unchanged.
            return event, b""
        if self._wants_usage_of(chunk):
            return event, b""
        if not chunk.choices:
            return b"", b""
        return without_usage(data), event if self._request.wants_usage else b""

    def _release_held(self) -> bytes:
        held, self._held = [*self._held, self._half_event], []
        if self._end_with_usage is not None:
            at, event = self._end_with_usage
            held[at], self._end_with_usage = event, None
        self._half_event, self._held_bytes, self._ends = b"", 0, 0
        return b"".join(held)

    def _without_repetition(self, content: str) -> str:
        """Return the text without the white space that the client has already received."""
        expected = self._repeatable_space
        if not expected or not content:
            return content
        same = 0
        while same < min(len(expected), len(content)) and expected[same] == content[same]:
            same += 1
        self._repeatable_space = expected[same:] if same == len(content) else ""
        return content[same:]

    def _rewrite(self, data: bytes, chunk: Chunk, content: str) -> tuple[bytes, bytes]:
        """Return the event of a continuation as a part of the first stream, as `_with_wanted_usage` does."""
        transcript = self._transcript
        fields: dict[str, Any] = msgspec.json.decode(data)
        if transcript.identity:
            fields.pop("system_fingerprint", None)
            fields |= transcript.identity
        ends = False
        for choice in fields.get("choices") or ():
            ends |= choice.get("finish_reason") is not None or bool((choice.get("delta") or {}).get("tool_calls"))
            holder = choice.get("delta") or choice
            field = "text" if holder is choice else "content"
            if transcript.role_sent:
                holder.pop("role", None)
            if field in holder and holder[field] is not None:
                holder[field] = content
        used, with_usage = fields.get("usage"), b""
        if used is not None:
            self._add_usage(used)
            self.usage_event = encode_event({"usage": used})
            if not self._wants_usage_of(chunk):
                if chunk.choices and self._request.wants_usage:
                    with_usage = encode_event(fields)
                del fields["usage"]
        is_usage_only = used is not None and not chunk.choices and "usage" not in fields
        adds = content or not chunk.choices or ends or not transcript.role_sent or self.problem
        return encode_event(fields) if adds and not is_usage_only else b"", with_usage

    def _add_usage(self, usage: dict[str, Any]) -> None:
        """Add the usage of earlier streams to the usage of this stream, and set the tokens of the client's prompt."""
        base_tokens, prompt_tokens = self._transcript.base_tokens, self._transcript.prompt_tokens
        if prompt_tokens is None:
            prompt_tokens = max(0, (usage.get("prompt_tokens") or 0) - base_tokens)
        usage |= _usage(prompt_tokens, base_tokens + (usage.get("completion_tokens") or 0))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            details["cached_tokens"] = min(details["cached_tokens"], prompt_tokens)


def _usage(prompt_tokens: int, generated_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
    }
