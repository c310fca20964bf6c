"""The usage of several answers in one response: SGLang's native API answers each of several prompts.

A whole response is an array of answers. In a stream, the member `index` of each event names the prompt, and each event
reports the usage of its prompt so far (python/sglang/srt/managers/tokenizer_manager.py of SGLang).
"""

from __future__ import annotations

from typing import Final

from penstock.answers.answer_errors import AnswerError, error_in
from penstock.answers.token_counts import Usage
from penstock.answers.usage_reader import Fields, ReportedUsage, UsagePlaces, members_of
from penstock.answers.values import CUT_REASONS, finish_reason_in, last_reason

MAX_ANSWERS: Final = 4096
"""Maximum number of answers in one response that are read; the usage of more is not that of the whole response."""

MAX_INDEX_BYTES: Final = 16


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


class IndexedAnswers:
    """The answers of one stream, by the index of their prompts."""

    __slots__ = ("_by_index", "_cut", "_is_whole", "_places", "_unfinished", "finish_reason")

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
