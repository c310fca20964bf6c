"""What an engine reports in the text messages of a WebSocket: the usage of each response of the session, and errors.

A session has many responses, each with its own report, so that the reports are added up. Output that no report follows,
such as a response that its client did not wait for, is counted by its events and marked as estimated.

Sources: https://platform.openai.com/docs/api-reference/realtime-server-events (`response.done`, `error`),
vllm/entrypoints/openai/realtime/protocol.py (`transcription.done`).
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from penstock.answers.answer_errors import AnswerError, error_in
from penstock.answers.answer_format import ERROR_MARK, AnswerFormat
from penstock.answers.token_counts import Usage
from penstock.answers.usage_reader import ReportedUsage, members_of

_OUTPUT: Final = re.compile(rb'"type" ?: ?"(?:response\.(?!audio\.|output_audio\.)[a-z_.]+|transcription)\.delta"')
"""The type of an event with generated text. Audio arrives beside its transcript."""

MAX_UNREPORTED: Final = 100_000_000
"""Maximum number of events with output that are counted."""


class SessionMessages:
    """The messages of one session."""

    def __init__(self, answer_format: AnswerFormat) -> None:
        """Start before the first message; `answer_format` is that of the route."""
        self._format = answer_format
        self._total = ReportedUsage(answer_format.places)
        self._unreported = 0
        """Events with output since the last report, each of which counts as one token."""
        self.error: AnswerError | None = None
        """The error that the last message reports; None if it reports none."""

    def read(self, message: bytes) -> None:
        """Read one text message of the engine. A message that is not a JSON object reports nothing."""
        self.error = None
        reports = any(message.find(mark) >= 0 for mark in self._format.usage_marks)
        if not reports and message.find(ERROR_MARK) < 0:
            if _OUTPUT.search(message) is not None:
                self._unreported = min(MAX_UNREPORTED, self._unreported + 1)
            return
        fields = members_of(message)
        if fields is None:
            return
        self.error = error_in(fields)
        one = ReportedUsage(self._format.places)
        if one.read(fields):
            self._total.add(one)
            self._unreported = 0

    @property
    def is_estimated(self) -> bool:
        """Whether a part of the output is counted by its events, or a report was not usable."""
        reported = self._total.usage
        return self._unreported > 0 or (reported is not None and not reported.answer_is_known)

    @property
    def usage(self) -> Usage | None:
        """The tokens of the session so far; None if nothing was reported or generated."""
        reported = self._total.usage
        if reported is None:
            return Usage(0, self._unreported, prompt_is_known=False) if self._unreported else None
        return msgspec.structs.replace(reported, answer_tokens=reported.answer_tokens + self._unreported)
