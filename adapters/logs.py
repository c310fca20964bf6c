"""Logs as JSON lines on standard error, libraries' logs included, with a limit on lines that repeat."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import structlog

MAX_REPEATS = 10
"""Maximum number of lines of one event in one window; further lines are counted and dropped."""

REPEAT_WINDOW_S = 10.0
"""Time (s) over which lines of one event are counted."""

MAX_EVENTS = 1024
"""Maximum number of events that are counted; above that, the least recently logged event is dropped."""

Key = tuple[str, str, str]


class RepeatLimit:
    """Drops lines of an event that repeats faster than MAX_REPEATS in REPEAT_WINDOW_S.

    The first line after a drop has the number of dropped lines as `dropped_repeats`. Without the limit, a fault that
    affects every request would log a traceback for each request.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._windows: dict[Key, tuple[float, int]] = {}
        """Start time (s) of the window of each event, and the number of lines since then."""

    def allow(self, key: Key) -> int | None:
        """Count a line of an event; returns the number of lines dropped before it, or None if the line is dropped."""
        now = self._clock()
        began_at, count = self._windows.pop(key, (now, 0))
        dropped = 0
        if now - began_at >= REPEAT_WINDOW_S:
            dropped, began_at, count = max(0, count - MAX_REPEATS), now, 0
        if len(self._windows) >= MAX_EVENTS:
            del self._windows[next(iter(self._windows))]
        self._windows[key] = (began_at, count + 1)
        return dropped if count < MAX_REPEATS else None

    def __call__(self, logger: Any, method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        """Apply the limit as a processor of structlog."""
        dropped = self.allow((method, str(event.get("event")), _exception_of(event.get("exc_info"))))
        if dropped is None:
            raise structlog.DropEvent
        if dropped:
            event["dropped_repeats"] = dropped
        return event

    def filter(self, record: logging.LogRecord) -> bool:
        """Apply the limit as a filter of a handler of the standard library's logging."""
        dropped = self.allow((record.name, f"{record.pathname}:{record.lineno}", _exception_of(record.exc_info)))
        if dropped:
            record.msg = f"{record.msg} (dropped_repeats={dropped})"
        return dropped is not None


class LossyLogger(structlog.PrintLogger):
    """Drops lines that cannot be written, so that a full disk raises no errors in the code that logs."""

    def msg(self, message: str) -> None:
        """Write one line, or drop it."""
        # The line is written in one call, because workers of one host share the stream. A closed stream raises
        # ValueError.
        with suppress(OSError, ValueError):
            self._file.write(f"{message}\n")
            self._file.flush()

    log = debug = info = warn = warning = fatal = failure = err = error = critical = exception = msg


def print_line(line: str) -> None:
    """Write one line to standard output. Raises OSError if it cannot be written."""
    # The line feed is part of the text: workers of one host share the stream, and with PYTHONUNBUFFERED `print`
    # writes its `end` separately.
    print(f"{line}\n", end="", flush=True)


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Write warnings to standard error and drop other lines: for commands, whose standard output has their result."""
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def configure_logs() -> None:
    """Configure structlog and the standard library's logging for the same output; call once, before the first line."""
    limit = RepeatLimit()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # Tracebacks are text without local variables, which may contain secrets.
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[limit, *shared, render],
        logger_factory=lambda *_: LossyLogger(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(limit.filter)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)


def _exception_of(exc_info: Any) -> str:
    """Return the type of an exception and the line that raised it; empty if there is no exception."""
    if exc_info is True:
        exc_info = sys.exc_info()
    error = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if not isinstance(error, BaseException):
        return ""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    line = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}" if traceback is not None else ""
    return f"{type(error).__name__} {line}"
