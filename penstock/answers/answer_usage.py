"""The usage that a response has reported so far, of one answer or of several, and whether it is that of the whole.

A report stands at a number of records with output: a report that output follows is not the last word. SGLang's native
API answers each of several prompts: a whole response is an array of answers, and in a stream the member `index` of each
event names the prompt, whose usage so far it reports (python/sglang/srt/managers/tokenizer_manager.py of SGLang).
"""

from __future__ import annotations

from typing import Final

from penstock.answers.answer_errors import AnswerError, error_in
from penstock.answers.answer_format import AnswerFormat
from penstock.answers.token_counts import Usage
from penstock.answers.usage_reader import Fields, ReportedUsage, UsagePlaces, members_of
from penstock.answers.values import CUT_REASONS, finish_reason_in, last_reason

MAX_ANSWERS: Final = 4096
"""Maximum number of answers in one response that are read; the usage of more is not that of the whole response."""

MAX_INDEX_BYTES: Final = 16


class AnswerUsage:
    """The reports of usage in one response. `delivered` is the number of records with output before a report."""

    def __init__(self, answer_format: AnswerFormat, is_stream: bool) -> None:
        """Start without a report."""
        self._places = answer_format.places
        self._reports_on_the_way = answer_format.is_openai
        self._reported: ReportedUsage | None = None
        self.indexed = IndexedAnswers(answer_format.places) if answer_format.has_indexes and is_stream else None
        """The answers of a stream that may contain several; it replaces `_reported`."""
        self._usage: Usage | None = None
        """The usage of an answer that was read in one pass; it replaces that of `_reported`."""
        self._final_at = -1
        """`delivered` when the last report of the usage of the whole answer arrived; -1 without such a report."""
        self._reported_at = 0
        """`delivered` when the last report arrived."""

    @property
    def value(self) -> Usage | None:
        """The usage; None without a report."""
        if self._usage is not None:
            return self._usage
        if self.indexed is not None:
            return self.indexed.usage
        return self._reported.usage if self._reported is not None else None

    @property
    def has_final(self) -> bool:
        """Whether the last report is of the whole answer, as far as it had arrived."""
        return self._final_at >= 0

    def is_final(self, delivered: int) -> bool:
        """Whether the usage is that of the whole answer: its report states the output, and no output has followed."""
        usage = self.value
        is_stated = not (delivered and self._places.answer) or (usage is not None and usage.answer_tokens > 0)
        is_stated = is_stated and (usage is None or usage.answer_is_known)
        return is_stated and self._final_at == delivered

    def is_last(self, delivered: int) -> bool:
        """Whether no output has followed the last report of usage, or that report stood at the end of an answer."""
        return self._final_at > 0 or self._reported_at == delivered

    def is_of_end(self, delivered: int) -> bool:
        """Whether there is a report of the whole answer, or one at its end in a format that reports none on the way."""
        on_the_way = self._reports_on_the_way or self.indexed is not None
        return self.has_final or (not on_the_way and self.value is not None and self._reported_at == delivered)

    def state(self, usage: Usage, delivered: int, is_final: bool) -> None:
        """Replace the usage by that of a report which was read in one pass; `is_final`: of the whole answer."""
        self._usage = usage
        self.place(delivered, is_final)

    def read(self, fields: Fields) -> bool:
        """Read a record. Returns whether it reports usage; then `place` says where the record stands."""
        if self.indexed is not None:
            return self.indexed.read(fields)
        if self._reported is None:
            self._reported = ReportedUsage(self._places)
        if self._usage is not None:
            self._reported.replace(self._usage)
            self._usage = None
        return self._reported.read(fields)

    def place(self, delivered: int, is_final: bool) -> None:
        """Note where the last report stands, and whether it is of the whole answer."""
        self._reported_at = delivered
        self._final_at = delivered if is_final else -1

    def read_array(self, answers: list[bytes], delivered: int, is_whole: bool) -> tuple[AnswerError | None, str]:
        """Read an array of answers, as SGLang sends for several prompts; their usage is added up.

        Returns the first error in them, and their finish reason.

        Args:
            is_whole: whether the array is the whole response.
        """
        self._usage = None
        self._reported, error, finish_reason = read_array(answers, self._places)
        if is_whole and len(answers) <= MAX_ANSWERS:
            self._final_at = delivered
        return error, finish_reason

    def is_at_end(self, last: Fields, delivered: int) -> bool:
        """Whether the last record of the answer reports usage, or stands behind a report of the whole answer."""
        return self._final_at == delivered or ReportedUsage(self._places).read(last)

    def end(self, delivered: int) -> None:
        """Note that the answer ends with the last report."""
        self._final_at = delivered


class IndexedAnswers:
    """The answers of one stream, by the index of their prompts."""

    def __init__(self, places: UsagePlaces) -> None:
        """Start without an answer."""
        self._places = places
        self._by_index: dict[bytes, ReportedUsage] = {}
        self._unfinished: set[bytes] = set()
        self._cut = ""
        """The finish reason of an answer that the engine cut; empty without one."""
        self._is_whole = True
        """Whether all answers are read."""
        self.finish_reason = ""
        """The last finish reason; empty while an answer that has begun has not ended."""

    def read(self, fields: Fields) -> bool:
        """Read an event, which belongs to one answer. Returns whether it reports usage."""
        raw = fields.get("index")
        index = b"" if raw is None else bytes(memoryview(raw)[:MAX_INDEX_BYTES])
        reported = self._by_index.get(index)
        if reported is None:
            reported = ReportedUsage(self._places)
        reports = reported.read(fields)
        if reports:
            self._is_whole = self._is_whole and (index in self._by_index or len(self._by_index) < MAX_ANSWERS)
            if self._is_whole:
                self._by_index[index] = reported
                self._unfinished.add(index)
        finish_reason = finish_reason_in(fields)
        if finish_reason:
            self._unfinished.discard(index)
            self._cut = self._cut or (finish_reason if finish_reason in CUT_REASONS else "")
        if finish_reason or self._unfinished:
            self.finish_reason = "" if self._unfinished else self._cut or finish_reason
        return reports

    @property
    def usage(self) -> Usage | None:
        """The added usage of all answers; None without a report, and if there are too many answers."""
        if not self._is_whole:
            return None
        total = ReportedUsage(self._places)
        for reported in self._by_index.values():
            total.add(reported)
        return total.usage


def read_array(answers: list[bytes], places: UsagePlaces) -> tuple[ReportedUsage, AnswerError | None, str]:
    """The added usage of an array of answers, the first error in it, and its finish reason."""
    total, error, reasons = ReportedUsage(places), None, []
    for answer in answers[:MAX_ANSWERS]:
        if (fields := members_of(answer)) is not None:
            one = ReportedUsage(places)
            if one.read(fields):
                total.add(one)
            error = error or error_in(fields)
            reasons.append(finish_reason_in(fields))
    return total, error, last_reason(reasons)
