"""Reads the response of one attempt: holds its beginning until it is no error, and states what the account needs.

A response with status 200 may be an error from its first event on, or as a whole. Until the client has received a byte,
the request can still be sent to another target.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.accounts.outcome_rules import Outcome
from penstock.answers.answer_errors import ABORTED, NOT_JSON, AnswerError
from penstock.answers.answer_format import AnswerFormats
from penstock.answers.answer_parser import EVENTS, JSON, LINES, AnswerParser
from penstock.answers.content_decoder import coding_of
from penstock.answers.held_text import MAX_UNDECIDED_BYTES, begins_container, is_readable
from penstock.http.header_rules import NO_BODY_STATUSES
from penstock.http.response_head import EVENT_STREAM_TYPE, NDJSON_TYPES, ResponseHead
from penstock.pools.placement import WorkEstimate
from penstock.routes.route import BodyKind, Route, StreamKind

HOLD_S = 1.0
"""Time (s) after a request was sent until which the beginning of a stream is held: events that only announce an answer,
since an error may follow, and comments, by which engines keep a stream open. The client may wait for later ones.
Not Final: mypyc would copy the value into the code, where tests cannot change it."""

MAX_KINDS: Final = 256

_UNREAD: Final = -1
_BYTES: Final = -2
"""A Content-Type that does not tell events from a JSON text: any bytes."""

_UNSTATED: Final = -3
"""As _BYTES, but no Content-Type: as _TEXT, unless the answers of the route are media."""

_TEXT: Final = -4
"""As _BYTES, but text, such as the page of a proxy which asks for a sign-in: no answer on routes of presets with
requests in JSON, unless it is JSON or events. Routes of a policy may respond with any text."""

_OK: Final = Outcome.OK
_JSON_BODY: Final = BodyKind.JSON
_SSE_KIND: Final = StreamKind.SSE
_LINES_KIND: Final = StreamKind.NDJSON
"""Aliases: in Python 3.11 reading an enum member from its class is a function call."""

_kinds: Final[dict[bytes, int]] = {}
"""The kind of a response, by its Content-Type as sent."""


class AnswerIntake:
    """The reading of one response."""

    def __init__(
        self, parser: AnswerParser, if_json: AnswerParser | None = None, if_events: AnswerParser | None = None
    ) -> None:
        """Read by `parser`, unless the response begins otherwise than its Content-Type states.

        Args:
            if_json: reads a response that begins like a JSON text, and not like JSON lines if `parser` reads lines;
                None for `parser`.
            if_events: reads a response that begins otherwise; None for `parser`.
        """
        self.parser = parser
        self._if_json = if_json
        self._if_events = if_events
        self.needs_json = False
        """Whether a stream of lines that does not begin like JSON is an error."""
        self.may_be_media = False
        """Whether the answers of the route are media."""
        self.is_media = False
        """Whether the response that `begin` has decided is media, of which no more need be read."""
        self.rest = b""
        """What the client has yet to receive of a response whose end `breaks_off` has read."""
        self.held = b""
        """What has arrived and is not forwarded yet, because it may be the beginning of an error."""

    def begin(self, part: bytes) -> bool:
        """Read a part before the response is committed; returns whether it can be decided now."""
        if self.needs_json and (first := part.lstrip()[:1]):
            self.needs_json = False
            if first not in (b"{", b"["):
                self.parser.error = NOT_JSON
        if (self._if_json or self._if_events) is not None and (first := part.lstrip()[:1]):
            needs_end = self.parser.needs_end
            if self.parser.reads_lines:
                first = part.lstrip().partition(b"\n")[0].rstrip()
            self.parser = (self._if_json if first in (b"{", b"[") else self._if_events) or self.parser
            # Text that only resembles JSON may have no end that is known.
            self.parser.needs_end = needs_end and self.parser is not self._if_json
            self._if_json = self._if_events = None
        self.held += self.parser.feed(part)
        if self.parser.undecided and len(self.held) <= MAX_UNDECIDED_BYTES:
            return False
        self.is_media = self.may_be_media and not (is_readable(self.held) or begins_container(self.held))
        return True

    @property
    def error(self) -> AnswerError | None:
        """The error of a response of which nothing is forwarded, or that the engine aborted its only answer."""
        parser = self.parser
        is_aborted = parser.finish_reason != "" and parser.is_cut and parser.choices == 1 and not parser.delivered
        return ABORTED if is_aborted and parser.error is None else parser.error

    def is_late(self, sent_at: float, now: float) -> bool:
        """Whether what is held has been held for long at `now` (s).

        Args:
            sent_at: when the request was sent (s).
        """
        return self.held != b"" and now - sent_at > HOLD_S

    def take_held(self) -> bytes:
        """Return what is held, and hold it no longer."""
        held, self.held = self.held, b""
        self.parser.is_beginning = False
        return held

    def breaks_off(self) -> bool:
        """Read the end of a response that must end with its answer; returns whether it is only the beginning of one.

        False for a response that may end anywhere.
        """
        parser = self.parser
        if not parser.needs_end or parser.is_finished:
            return False
        if not parser.is_unreadable:
            self.rest = parser.finish(complete=True)
        return parser.is_short

    def settle(self, account: Account, estimate: WorkEstimate, *, complete: bool) -> None:
        """Set the usage in the account of a request whose response began.

        Args:
            complete: whether the client received the whole answer.
        """
        parser = self.parser
        delivered, text_bytes = parser.delivered, parser.text_bytes
        if not parser.counts_output:
            delivered = -1 if complete or text_bytes else 0
        usage = parser.usage
        # Some engines report the usage before the first token too, with one token of output.
        is_stated = usage is not None and ((usage.answer_tokens > 0 and parser.usage_is_last) or not parser.delivered)
        is_final = parser.usage_is_final or (complete and is_stated)
        account.use_tokens(estimate, usage, delivered, is_final=is_final, text_bytes=text_bytes)


def intake_of(
    formats: AnswerFormats, route: Route | None, head: ResponseHead, estimate: WorkEstimate, *, hides_usage: bool
) -> AnswerIntake | None:
    """The reading of a response; None for a response that is not read: an error status, an image, audio.

    Args:
        estimate: of the request.
        hides_usage: whether the agent asked for the usage of the stream, and not the client.
    """
    by_name, streaming, answer_format = head.by_name, estimate.streaming, formats.of(route)
    if not 200 <= head.status < 300 or (head.status in NO_BODY_STATUSES and not answer_format.has_form):
        return None
    length = by_name.get(b"content-length")
    is_empty = length == b"0" or head.status in NO_BODY_STATUSES
    if is_empty and not (streaming or answer_format.has_form):
        return None
    content_type = by_name.get(b"content-type", b"")
    stated = _kinds.get(content_type)
    if stated is None:
        stated = _kind_of(content_type)
    if _BYTES <= stated < JSON and answer_format.is_json:
        stated = _TEXT
    if stated == _UNREAD and not (answer_format.is_media or (is_empty and answer_format.has_form)):
        return None
    stated_coding = by_name.get(b"content-encoding")
    coding = coding_of(stated_coding) if stated_coding else b""
    kind = stated
    has_events = streaming and (route is None or route.stream is _SSE_KIND)
    has_lines = streaming and route is not None and route.stream is _LINES_KIND
    if stated < JSON:
        kind = EVENTS if has_events else JSON
    if has_lines and stated != EVENTS:
        kind = LINES
    if answer_format.has_form and is_empty:
        kind = JSON
    is_text = stated == _TEXT or (stated == _UNSTATED and not answer_format.is_media)
    is_text = is_text and (route is None or (not route.source and route.body is _JSON_BODY))
    if_json = if_events = None
    if has_lines and kind != stated and not coding:
        if_json = AnswerParser(answer_format, JSON, coding, False)
    if has_events and not coding:
        if kind == JSON:
            if_events = AnswerParser(answer_format, EVENTS, coding, hides_usage)
            if_events.choices, if_events.needs_event = estimate.ask.count, True
        elif stated < JSON:
            if_json = AnswerParser(answer_format, JSON, coding, False)
    intake = AnswerIntake(AnswerParser(answer_format, kind, coding, hides_usage), if_json, if_events)
    intake.parser.needs_event = streaming and (stated >= JSON or is_text)
    intake.parser.choices = estimate.ask.count
    is_chunked = b"transfer-encoding" in by_name
    closes = length is None and not is_chunked
    needs_end = closes and (stated == JSON or kind != JSON)
    intake.parser.needs_end, intake.parser.is_framed = needs_end or (is_chunked and kind != JSON), is_chunked
    intake.parser.needs_json = kind == JSON and (stated == JSON or is_text) and not needs_end
    if answer_format.may_be_text and kind == JSON and content_type.startswith(b"text/html"):
        # A text is an answer, but the page of a proxy is none.
        intake.parser.needs_json = True
    if head.status == 206 and not answer_format.has_form:
        intake.parser.needs_json = False
    intake.parser.needs_answer = answer_format.has_form
    intake.may_be_media = answer_format.is_media and not coding
    if if_json is not None:
        if_json.needs_answer = intake.parser.needs_answer
    intake.needs_json = kind == LINES and (stated >= JSON or is_text) and not coding
    return intake


def _kind_of(content_type: bytes) -> int:
    media_type = content_type.partition(b";")[0].strip().lower()
    kind = _UNREAD
    if not media_type:
        kind = _UNSTATED
    elif media_type == b"application/octet-stream":
        kind = _BYTES
    elif media_type.startswith(b"text/"):
        kind = _TEXT
    if media_type == EVENT_STREAM_TYPE:
        kind = EVENTS
    elif media_type in NDJSON_TYPES:
        kind = LINES
    elif media_type == b"application/json" or media_type.endswith(b"+json"):
        kind = JSON
    if len(_kinds) < MAX_KINDS:
        _kinds[content_type] = kind
    return kind
