"""Reads one response as it arrives: usage, errors, end, the identifier of its object, and the amount of output.

A response is a JSON text, a stream of server-sent events, or a stream of JSON lines. A part of a stream that contains
none of the byte strings that announce something (`AnswerFormat`) is counted and not parsed. Memory is bounded whatever
an engine sends: a record or answer that is too long to be held is reduced to the members that are read.
"""

from __future__ import annotations

from typing import Final

from penstock.answers.answer_errors import (
    NO_ANSWER,
    NO_EVENT,
    NOT_JSON,
    AnswerError,
    error_in,
    is_failed_object,
    named_error,
    stated_abort,
)
from penstock.answers.answer_format import ERROR_MARK, AnswerFormat
from penstock.answers.answer_usage import MAX_ANSWERS, AnswerUsage
from penstock.answers.content_decoder import ContentDecoder
from penstock.answers.event_splitter import KEEP_ALIVES, EventSplitter, data_in, event_fields
from penstock.answers.first_events import OUTPUT, UNKNOWN, kind_of_first
from penstock.answers.held_text import (
    MAX_UNDECIDED_BYTES,
    HeldText,
    begins_container,
    begins_json,
    is_readable,
    is_scalar,
)
from penstock.answers.json_reducer import JsonReducer
from penstock.answers.openai_answer import usage_of_answer, usage_of_text
from penstock.answers.plain_records import PlainRecords, announces
from penstock.answers.stream_ends import awaited_ends, defines_end, is_end, is_half, last_record, may_finish
from penstock.answers.token_counts import Usage
from penstock.answers.usage_reader import Fields, is_empty, members_of
from penstock.answers.values import CUT_REASONS, AnswerIds, cut_reason_in, finish_reason_in, list_of, outputs_in

JSON: Final = 0
EVENTS: Final = 1
LINES: Final = 2

_DONE: Final = b"[DONE]"
_ERROR_NAME: Final = b"error"
_CRLF_END: Final = b"\r\n\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_NO_SPLITTER: Final = EventSplitter()
_NO_TEXT: Final = HeldText()
_NO_RECORDS: Final = PlainRecords(AnswerFormat(None), lines=False)
_NO_IDS: Final = AnswerIds((), has_items=False)
"""In place of what an answer does not need: splitter and records if it is no stream, text if it is one, identifiers."""


class AnswerParser:
    """The parser of one response."""

    def __init__(self, answer_format: AnswerFormat, kind: int, coding: bytes, hides_usage: bool) -> None:
        """Read a response.

        Args:
            answer_format: the format of the route.
            kind: JSON, EVENTS or LINES.
            coding: the content coding of the response, in lower case; empty for none.
            hides_usage: whether the agent asked for the usage of the stream, and not the client, who does not receive
                the event that only reports it. An encoded stream is forwarded as it is.
        """
        self._format = answer_format
        self._kind = kind
        self.reads_lines = kind == LINES
        self._decoder = ContentDecoder(coding) if coding else None
        self.hides_usage = hides_usage and kind == EVENTS and not coding
        """Whether the client may receive less than the whole body, so that its length is not known beforehand."""
        self._splitter = _NO_SPLITTER if kind == JSON else EventSplitter(lines=kind == LINES)
        self._held = HeldText() if kind == JSON else _NO_TEXT
        self._reducer: JsonReducer | None = None
        """Set while a record or an answer is read that is too long to be held."""
        self._usage = AnswerUsage(answer_format, kind != JSON)
        self._last = b""
        """The last part of a stream that was counted and not parsed."""
        self.ids = AnswerIds(paths, has_items=answer_format.has_items) if (paths := answer_format.id_paths) else _NO_IDS
        self._plain = _NO_RECORDS if kind == JSON else PlainRecords(answer_format, lines=kind == LINES)
        self.begun = False
        """Whether a record has arrived (comments, blank events, pings and `[DONE]` are none), or JSON text was read."""
        self.is_beginning = False
        """Whether the records so far only announce the answer; reset by the caller once it forwards them."""
        self.delivered = 0
        """Parts of answers that have arrived in records: approximately the number of generated tokens."""
        self.text_bytes = 0
        """Size of an answer that is no stream, as far as it has arrived."""
        self.ended = False
        """Whether the end of the answer has arrived: its last record, or the end of its JSON text."""
        self.error: AnswerError | None = None
        """The first error that the answer reports."""
        self.finish_reason = ""
        self.needs_event = False
        """Whether a stream that ends without an event is an error; set by the caller."""
        self.needs_end = False
        """Whether a response without the end of its format is cut; set by the caller."""
        self.is_framed = False
        """Whether the framing shows the end of a response that needs one too; set by the caller."""
        self.needs_json = False
        """Whether a response that is no JSON text, or only the beginning of one, is an error; set by the caller."""
        self.needs_answer = False
        """Whether a response of another form than the answers of the route is an error; set by the caller."""
        self._may_be_plain = False
        """Whether the answer has begun and not ended, and is the only one, so that not every record is read."""
        self._has_answer = False
        """Whether a record of the route's answers has arrived, and not only records of unknown form."""
        self._awaited_ends = int(kind == JSON)
        """Number of answers whose finish reason has not arrived, if each whole response of the format has an end."""
        self.choices = 1
        """Number of answers requested at once; set by the caller. The finish reason of one does not end the others."""

    @property
    def usage_is_final(self) -> bool:
        """Whether the usage is that of the whole answer."""
        return self._usage.is_final(self.delivered)

    @property
    def usage_is_last(self) -> bool:
        """Whether no output has followed the last report of usage, or that report stood at the end of an answer."""
        return self._usage.is_last(self.delivered)

    @property
    def undecided(self) -> bool:
        """Whether the part of the response that has arrived may be the beginning of an error."""
        if self.error is not None or self._reducer is not None or self.is_unreadable:
            return False
        if self.begun and (self.ended or not self.is_beginning):
            return False
        if self._kind == JSON:
            return not self.ended and self._held.is_undecided(self.needs_answer, self._format.is_media)
        return len(self._splitter.rest) <= MAX_UNDECIDED_BYTES

    @property
    def is_cut(self) -> bool:
        """Whether the engine ended the answer before its end, by the finish reason that `finish` has read."""
        return self.finish_reason in CUT_REASONS

    @property
    def is_finished(self) -> bool:
        """Whether a whole answer has arrived, or an error instead, although the response may not have ended."""
        return self.ended or (self.finish_reason != "" and self._kind != JSON) or self.error is not None

    @property
    def is_short(self) -> bool:
        """Whether a response that `finish` has read lacks the end that shows that it is whole."""
        is_whole = self.is_finished or (self.is_framed and self._usage.is_of_end(self.delivered))
        return self.needs_end and self._awaited_ends > 0 and not (self.is_unreadable or is_whole)

    @property
    def is_unreadable(self) -> bool:
        """Whether the response has a content coding that is not decoded, so that its records are not counted."""
        return self._decoder is not None and self._decoder.failed

    @property
    def between_records(self) -> bool:
        """Whether no record has arrived, and all that has is complete; or no part of a JSON text."""
        if self._kind == JSON:
            return self._held.size_bytes == 0 and self._reducer is None and not self.ended
        return not self.begun and not self._splitter.rest

    @property
    def counts_output(self) -> bool:
        """Whether `delivered` increases with each part of the answer."""
        return self._kind != JSON and self._reducer is None and not self.is_unreadable

    @property
    def usage(self) -> Usage | None:
        """The usage that the answer has reported; None without a report."""
        return self._usage.value

    def skim_chunk(self, chunk: bytes, begin: int) -> bool:
        """Count a chunk, framing included, that consists of whole records with nothing to parse; False for any other.

        `feed` must receive the body of any other chunk.

        Args:
            begin: offset of the body.
        """
        if self._decoder is not None or not self._may_skim():
            return False
        count = self._plain.count_chunk(chunk, begin)
        if count < 0:
            return False
        self.delivered, self._last = self.delivered + count, chunk
        return True

    def feed(self, part: bytes) -> bytes:
        """Read a further part of the body; returns what the client receives of the parts so far."""
        decoder = self._decoder
        if decoder is not None:
            for decoded in decoder.feed(part):
                self._read(decoded)
            return part
        return self._read(part)

    def finish(self, *, complete: bool) -> bytes:
        """Read what remains at the end of the response; returns what the client has yet to receive.

        Args:
            complete: whether the response is complete; otherwise it broke off, or its client left.
        """
        rest, lines, is_json = self._splitter.take_rest(), self._kind == LINES, True
        if self._reducer is not None:
            self._read_reduced()
            self.begun, is_json = True, self.ended
        elif self._held.size_bytes:
            text, self.begun = self._held.take().removeprefix(_BOM), True
            self._read_record(text, counts=False)
            is_other = is_scalar(text) or (self._format.is_media and is_readable(text))
            is_other = is_other and self.needs_answer and not self._format.may_be_text
            if is_other and text[:1] != b"{" and self.error is None:
                self.error = NO_ANSWER
            if self.needs_json and not (self.ended and text[:1] == b"{"):
                is_json = self.ended if begins_container(text) else is_scalar(text)
        elif rest and complete and not (self.needs_end and is_half(rest, lines=lines)) and self._read_event(rest):
            # A stream may end without an empty line after its last event.
            rest = b""
        elif (
            complete
            and self.needs_answer
            and self._kind == JSON
            and not (self.begun or self.is_unreadable)
            and (self.needs_json or not self._format.may_be_text)
        ):
            self.error = self.error or NO_ANSWER
        if complete and self.needs_json and not (is_json or self.is_unreadable):
            self.error = self.error or NOT_JSON
        all_ended = (complete and not self._awaited_ends) or self.choices == 1 or self._usage.has_final
        if not self.finish_reason and all_ended and self._last:
            self._read_finish(last_record(self._last, lines=lines))
        is_empty = self.between_records or (self.is_beginning and not self.ended)
        if complete and self.needs_event and is_empty and not self.is_unreadable and self.error is None:
            self.error = NO_EVENT
        return rest if self.hides_usage else b""

    def _read(self, part: bytes) -> bytes:
        if self._kind == JSON:
            self._hold(part)
            return part
        count = self._plain.count(part) if self._may_skim() else -1
        if count >= 0:
            self.delivered += count
            self._last = part
            if count and self.is_beginning:
                self.is_beginning = False
            return part
        if self._reducer is not None:
            part_of_record, rest = self._feed_reducer(part)
            return part_of_record + (self._read(rest) if rest else b"")
        events = self._splitter.feed(part)
        forwarded = [event for event in events if not self._read_event(event)]
        if self._splitter.overflows:
            forwarded.append(self._begin_reducing())
        return b"".join(forwarded) if self.hides_usage else part

    def _may_skim(self) -> bool:
        """Whether a record can begin with the next part, and need not be parsed for another reason than its content."""
        return self._may_be_plain and not self._splitter.rest and not self.ids.records_left and self._reducer is None

    def _read_event(self, event: bytes) -> bool:
        """Read a complete event or line; returns whether it only reports usage that the client did not ask for."""
        if self._kind == LINES:
            name, data = b"", event.strip() or None
        else:
            if not self.begun and event.startswith(_BOM):
                event = event[len(_BOM) :]
            name, data = event_fields(event)
            if event.endswith(_CRLF_END):
                self._plain.use_crlf()
        if self.ended:
            # What follows the end is no part of the answer.
            return False
        if data is None and name == _ERROR_NAME:
            data = b""
        if data is None:
            # Some engines send an error as the JSON text that is their response to a request without a stream.
            stray = members_of(event.strip()) if event.find(ERROR_MARK) >= 0 else None
            self.error = self.error or (None if stray is None else error_in(stray))
            return False
        if data.startswith(_DONE) and data.strip() == _DONE:
            self.ended, self._may_be_plain = True, False
            if self.begun and not self._has_answer and self.needs_event:
                self.error = self.error or NO_EVENT
            return False
        if name in KEEP_ALIVES:
            return False
        first, self.begun = not self.begun, True
        if first or self.is_beginning or not self._has_answer:
            kind = kind_of_first(data, self._format.members)
            self.is_beginning = kind != OUTPUT and (first or self.is_beginning)
            self._has_answer = self._has_answer or kind != UNKNOWN or not self._format.members
            self._may_be_plain = self._has_answer and self._counts_by_event()
        finishes = may_finish(data) is not None
        if self.needs_end and (first or (finishes and not (self.is_framed and self.choices == 1))):
            before = self.choices if first else self._awaited_ends
            self._awaited_ends = awaited_ends(members_of(data), before, first=first, is_framed=self.is_framed)
        if self.choices > 1 and finishes:
            self._last = event
            self.finish_reason = cut_reason_in(data) or self.finish_reason
        if name == _ERROR_NAME:
            self.error = self.error or named_error(data)
            return False
        if not (self.ids.records_left or (finishes and self.choices == 1) or announces(data, self._format)):
            if self._counts_by_event():
                self.delivered += not self.is_beginning and data.find(self._format.delta_mark) >= 0
            elif not self.is_beginning:
                self.delivered += outputs_in(members_of(data) or {})
            self._last = event
            return False
        self.ids.records_left = max(0, self.ids.records_left - 1)
        return self._read_record(data, counts=True)

    def _counts_by_event(self) -> bool:
        """Whether each event adds to one answer, whose finish reason has not arrived."""
        return self.choices == 1 and not self.finish_reason

    def _read_record(self, data: bytes, *, counts: bool) -> bool:
        """Read the JSON text of a record; returns whether it only reports usage that the client did not ask for."""
        if self._format.is_openai and not self._format.id_paths:
            generates = self._format.places.needs_answer
            if self._kind == JSON and not self._held.may_be_error:
                whole = usage_of_text(data, self._format.members, generates=generates)
                if whole is not None:
                    self.ended, self.finish_reason = True, whole[1]
                    self._usage.state(whole[0], self.delivered, is_final=True)
                    return False
            in_one_pass = self._kind != JSON and self._counts_by_event() and not may_finish(data)
            read = usage_of_answer(data, self._usage.value, generates=generates) if in_one_pass else None
            if read is not None:
                usage, has_choices = read
                if has_choices:
                    self.delivered += not self.is_beginning
                    self._last = b"data: " + data
                self._usage.state(usage, self.delivered, is_final=not has_choices)
                return self.hides_usage and not has_choices
        fields = members_of(data)
        if fields is None:
            answers = list_of(data, MAX_ANSWERS + 1)
            if answers is not None:
                if self._kind == JSON and self.needs_answer and not self._format.is_list(answers):
                    self.error = NO_ANSWER
                self._read_answers(answers, is_whole=self._kind == JSON)
                return False
            reducer = JsonReducer(self._format.wanted)
            reducer.feed(data)
            if self._kind == JSON:
                self.ended = self.ended or reducer.complete
            fields = members_of(reducer.result())
            if fields is None:
                return False
        elif self._kind == JSON:
            self.ended = True
            if self.needs_answer and not self._format.is_answer(fields):
                self.error = error_in(fields) or NO_ANSWER
        return self._read_fields(fields, counts=counts)

    def _read_answers(self, answers: list[bytes], *, is_whole: bool) -> None:
        """Read an array of answers; `is_whole`: it is the whole response."""
        self.ended = self.ended or self._kind == JSON
        error, self.finish_reason = self._usage.read_array(answers, self.delivered, is_whole)
        self.error = self.error or error

    def _read_fields(self, fields: Fields, *, counts: bool) -> bool:
        error = None if self._format.is_stored and is_failed_object(fields) else error_in(fields)
        self.error = self.error or error
        reports, indexed = self._usage.read(fields), self._usage.indexed
        if indexed is not None:
            self.finish_reason = indexed.finish_reason
        elif (self.choices == 1 or self._kind == JSON) and (finish := finish_reason_in(fields)):
            self.finish_reason, self._may_be_plain = finish, False
        if self.error is None and self.finish_reason in CUT_REASONS:
            self.error = stated_abort(fields)
        if is_end(fields):
            self.ended, self._may_be_plain = True, False
        self.ids.read(fields)
        choices = fields.get("choices")
        is_usage_only = reports and error is None and choices is not None and is_empty(choices)
        if counts:
            self.delivered += outputs_in(fields)
        if reports:
            is_final = self._kind == JSON or is_usage_only or self.ended or self.finish_reason != ""
            self._usage.place(self.delivered, is_final)
        return is_usage_only and self.hides_usage

    def _read_finish(self, last: Fields | None) -> None:
        """Read the finish reason, or the end, in the last record before an end that has none, such as `[DONE]`."""
        self._last, fields = b"", last or {}
        self.finish_reason, is_last = finish_reason_in(fields), is_end(fields)
        if self.finish_reason or is_last:
            self.ended = self.ended or is_last
            is_final = self._usage.is_at_end(fields, self.delivered)
            # Without output, the record has been counted if every event counts.
            if self.choices == 1 and not (self._format.delta_mark or outputs_in(fields)):
                self.delivered = max(0, self.delivered - 1)
            if is_final:
                self._usage.end(self.delivered)

    # answers and records that are too long to be held

    def _hold(self, part: bytes) -> None:
        """Hold a part of a JSON answer, or reduce it once the answer is too long."""
        self.text_bytes += len(part)
        if self._reducer is not None:
            self._reducer.feed(part)
            return
        if self.needs_json and part[:1] != b"{" and not self._held.size_bytes and not begins_json(part):
            self.error = NOT_JSON
        self._reducer = self._held.add(part, self._format.wanted, self._format.members)

    def _read_reduced(self) -> None:
        reducer, self._reducer = self._reducer, None
        assert reducer is not None
        if self._kind == JSON:
            self.ended = self.ended or reducer.complete
        result = reducer.result()
        fields = members_of(result)
        if self._kind == JSON and self.ended and self.needs_answer and not self._format.is_reduced_answer(reducer):
            self.error = (None if fields is None else error_in(fields)) or NO_ANSWER
        if fields is not None:
            needs_end = self.needs_end and defines_end(fields, is_framed=self.is_framed)
            self._awaited_ends = self._awaited_ends or (self.choices if needs_end else 0)
            self._read_fields(fields, counts=self._kind != JSON)
        elif (answers := list_of(result, MAX_ANSWERS + 1)) is not None:
            self._read_answers(answers, is_whole=self._kind == JSON and not reducer.is_partial)

    def _begin_reducing(self) -> bytes:
        """Read the incomplete record, which is too long to be held, by a reducer; returns the record so far."""
        rest, self._last = self._splitter.take_long(), b""
        self.begun = self._has_answer = True
        self._may_be_plain = self._counts_by_event()
        self._reducer = JsonReducer(self._format.wanted)
        self._reducer.feed(data_in(rest) if self._kind == EVENTS else rest)
        return rest

    def _feed_reducer(self, part: bytes) -> tuple[bytes, bytes]:
        """Feed a long record; returns its part, and the part after its end."""
        assert self._reducer is not None
        end = self._splitter.end_in(part)
        if end < 0:
            self._reducer.feed(part)
            return part, b""
        self._reducer.feed(part[:end])
        self._read_reduced()
        return part[:end], part[end:]
