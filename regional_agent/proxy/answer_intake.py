"""Reads the response of one attempt: holds its beginning until it is no error, and states what the account needs.

A response with status 200 may be an error from its first event on, or as a whole. Until the client has received a byte,
the request can still be sent to another target.
"""

from __future__ import annotations

from typing import Final

from penstock.accounts.account import Account
from penstock.answers.answer_errors import AnswerError
from penstock.answers.answer_format import AnswerFormats
from penstock.answers.answer_parser import EVENTS, JSON, LINES, MAX_UNDECIDED_BYTES, AnswerParser
from penstock.pools.placement import WorkEstimate
from penstock.routes.route import Route, StreamKind
from regional_agent.http.headers.header_rules import NO_BODY_STATUSES
from regional_agent.proxy.error_formats import EVENT_STREAM_TYPE, NDJSON_TYPES
from regional_agent.upstream.response_head import ResponseHead

HOLD_S: Final = 1.0
"""Time (s) after a request was sent until which comments, by which engines keep a stream open, are held: a response is
not committed to its target before its first event. Later comments are forwarded, since the client may wait for them."""

MAX_KINDS: Final = 256

_UNREAD: Final = -1
_LINES_KIND: Final = StreamKind.NDJSON
"""An alias: in Python 3.11 reading an enum member from its class is a function call."""

_kinds: dict[bytes, int] = {}
"""The kind of a response, by its Content-Type as sent."""


class AnswerIntake:
    """The reading of one response."""

    __slots__ = ("_if_json", "held", "parser")

    def __init__(self, parser: AnswerParser, if_json: AnswerParser | None = None) -> None:
        """Read by `parser`; a response that begins like a JSON text, by `if_json`, unless it is None."""
        self.parser = parser
        self._if_json = if_json
        self.held = b""
        """What has arrived and is not forwarded yet, because it may be the beginning of an error."""

    def begin(self, part: bytes) -> bool:
        """Read a part before the response is committed; returns whether it can be decided now."""
        if self._if_json is not None:
            if part.lstrip()[:1] in (b"{", b"["):
                self.parser = self._if_json
            self._if_json = None
        self.held += self.parser.feed(part)
        return not self.parser.undecided or len(self.held) > MAX_UNDECIDED_BYTES

    def forwards_comments(self, sent_at: float, now: float) -> bool:
        """Whether comments, by which the engine keeps the stream open, are forwarded before the first event.

        Args:
            sent_at: when the request was sent (s).
        """
        return self.parser.between_records and now - sent_at > HOLD_S

    def end(self) -> bytes:
        """Read the end of a complete response; returns what the client has yet to receive."""
        return self.parser.finish(complete=True)

    def take_held(self) -> bytes:
        """Return what is held, and hold it no longer."""
        held, self.held = self.held, b""
        return held

    @property
    def error(self) -> AnswerError | None:
        """The error that the response reports."""
        return self.parser.error

    @property
    def is_finished(self) -> bool:
        """Whether the client has received a whole answer, although the response may not have ended."""
        return self.parser.ended or self.parser.finish_reason != ""

    def settle(self, account: Account, estimate: WorkEstimate, *, complete: bool) -> None:
        """Set the usage in the account of a request whose response began.

        Args:
            complete: whether the client received the whole answer.
        """
        parser = self.parser
        delivered = parser.delivered if estimate.streaming else -1 if complete else 0
        usage = parser.usage
        # Some engines report the usage before the first token too. The last report counts if it states the output.
        is_last = complete and usage is not None and (usage.answer_tokens > 0 or parser.delivered == 0)
        account.use_tokens(estimate, usage, delivered, is_final=is_last or parser.usage_is_final)


def intake_of(
    formats: AnswerFormats, route: Route | None, head: ResponseHead, *, streaming: bool, hides_usage: bool
) -> AnswerIntake | None:
    """The reading of a response; None for a response that is not read: an error status, an image, audio.

    Args:
        streaming: whether the client asked for a stream.
        hides_usage: whether the agent asked for the usage of the stream, and not the client.
    """
    if not 200 <= head.status < 300 or head.status in NO_BODY_STATUSES:
        return None
    by_name = head.by_name
    content_type = by_name.get(b"content-type", b"")
    kind = _kinds.get(content_type)
    if kind is None:
        kind = _kind_of(content_type)
    if not content_type:
        kind = JSON
        if streaming:
            kind = LINES if route is not None and route.stream is _LINES_KIND else EVENTS
    if kind == _UNREAD:
        return None
    coding = by_name.get(b"content-encoding", b"").strip().lower()
    if coding == b"identity":
        coding = b""
    answer_format = formats.of(route)
    parser = AnswerParser(answer_format, kind, coding, hides_usage)
    # Without a Content-Type the response to a request for a stream may be a JSON text.
    if_json = None if content_type or kind == JSON else AnswerParser(answer_format, JSON, coding, False)
    return AnswerIntake(parser, if_json)


def _kind_of(content_type: bytes) -> int:
    media_type = content_type.partition(b";")[0].strip().lower()
    kind = _UNREAD
    if media_type == EVENT_STREAM_TYPE:
        kind = EVENTS
    elif media_type in NDJSON_TYPES:
        kind = LINES
    elif media_type == b"application/json":
        kind = JSON
    if len(_kinds) < MAX_KINDS:
        _kinds[content_type] = kind
    return kind
