"""An input file as it arrives: checks every line, and cuts the file into parts of whole lines."""

from __future__ import annotations

from typing import Final

from penstock.jobs.batches.line_splitter import LineSplitter, LineTooLong
from penstock.jobs.batches.request_line import LineChecks, LineProblem, RequestLine, check_line
from penstock.jobs.job_records import MAX_ERRORS
from regional_agent.jobs.uploads.custom_ids import CustomIds

PART_BYTES: Final = 4 * 1024 * 1024
"""Size (bytes) from which a part is complete: with the next end of a line."""

MAX_URLS: Final = 16
"""Maximum number of different `url` values of one file."""


class InputPart:
    """A complete part."""

    __slots__ = ("content", "lines")

    def __init__(self, content: bytes, lines: int) -> None:
        self.content = content
        self.lines = lines


class InputFile:
    """Reads one file. `parts` has the complete parts, which the caller takes."""

    def __init__(self, checks: LineChecks, max_bytes: int, max_requests: int) -> None:
        """Start before the first byte; `max_bytes` and `max_requests` limit the file."""
        self._checks = checks
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self._splitter = LineSplitter()
        self._ids = CustomIds()
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._lines_before = 0
        """Number of lines in the complete parts."""
        self._ends_early = False
        self.parts: list[InputPart] = []
        self.problems: list[LineProblem] = []
        self.size_bytes = 0
        self.requests = 0
        self.urls: dict[str, int] = {}
        """The first line with each `url`."""

    @property
    def lines(self) -> int:
        """Number of complete lines."""
        return self._splitter.line

    @property
    def is_refused(self) -> bool:
        """Whether the rest need not be read."""
        return self._ends_early or len(self.problems) >= MAX_ERRORS

    def feed(self, data: bytes) -> None:
        """Check a further part of the file, and keep it."""
        if self.is_refused:
            return
        self.size_bytes += len(data)
        if self.size_bytes > self._max_bytes:
            self._refuse(LineProblem("file_too_large", f"the file is larger than {self._max_bytes} bytes"))
            return
        try:
            for number, text in self._splitter.feed(data):
                self._check(number, text)
        except LineTooLong as error:
            self._refuse(LineProblem("line_too_long", str(error), error.line))
            return
        if self.lines - self.requests > self._max_requests:
            message = f"the file has more than {self._max_requests} empty lines"
            self._refuse(LineProblem("too_many_empty_lines", message, self.lines))
            return
        end = data.rfind(b"\n") + 1
        if end and self._kept_bytes + end >= PART_BYTES:
            self._keep(data[:end])
            self._cut()
            data = data[end:]
        self._keep(data)

    def finish(self) -> None:
        """Check the last line, and complete the last part. Blocks: call it in a thread."""
        if self.is_refused:
            return
        try:
            for number, text in self._splitter.finish():
                self._check(number, text)
        except LineTooLong as error:
            self._refuse(LineProblem("line_too_long", str(error), error.line))
            return
        self._cut()
        repeated = self._ids.first_repeated()
        if repeated is not None:
            line, first = repeated
            message = f"line {line}: the `custom_id` is also that of line {first}"
            self.problems.append(LineProblem("duplicate_custom_id", message, line, "custom_id"))
        if not self.requests and not self.problems:
            self.problems.append(LineProblem("empty_file", "the file has no request"))

    def close(self) -> None:
        """Remove temporary files."""
        self._ids.close()

    def _check(self, number: int, text: bytes) -> None:
        if self.is_refused:
            return
        self.requests += 1
        if self.requests > self._max_requests:
            message = f"the file has more than {self._max_requests} requests"
            self._refuse(LineProblem("too_many_requests", message, number))
            return
        found = check_line(number, text, self._checks)
        if not isinstance(found, RequestLine):
            self.problems.append(found)
            return
        self._ids.add(found.custom_id, number)
        if found.url not in self.urls:
            if len(self.urls) >= MAX_URLS:
                message = f"line {number}: the file has more than {MAX_URLS} different `url`"
                self.problems.append(LineProblem("too_many_urls", message, number, "url"))
            else:
                self.urls[found.url] = number

    def _refuse(self, problem: LineProblem) -> None:
        """Add a problem after which the rest is not read."""
        self.problems.append(problem)
        self._ends_early = True

    def _keep(self, data: bytes) -> None:
        if data:
            self._kept.append(data)
            self._kept_bytes += len(data)

    def _cut(self) -> None:
        if self._kept_bytes:
            lines = self._splitter.line
            self.parts.append(InputPart(b"".join(self._kept), lines - self._lines_before))
            self._lines_before = lines
            self._kept, self._kept_bytes = [], 0
