"""Lines of a fault that repeats are limited, and the number of those dropped is reported."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import suppress
from io import RawIOBase, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar

import pytest
import structlog

from adapters import logs
from adapters.logs import MAX_EVENTS, MAX_REPEATS, REPEAT_WINDOW_S, LossyLogger, RepeatLimit, print_line
from tests.support.clocks import SetClock


def fail(message: str) -> None:
    raise ValueError(message)


def logger_with(limit: RepeatLimit, written: StringIO) -> structlog.typing.FilteringBoundLogger:
    processors = [limit, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    return structlog.wrap_logger(structlog.PrintLogger(written), processors=processors)  # type: ignore[no-any-return]


def test_repeats_are_dropped_and_counted_once_the_window_is_over() -> None:
    clock, written = SetClock(0.0), StringIO()
    log = logger_with(RepeatLimit(clock), written)
    for number in range(100):
        try:
            fail(f"request {number}")
        except ValueError:
            log.exception("learning failed")
    assert len(written.getvalue().splitlines()) == MAX_REPEATS
    log.warning("something else")
    assert len(written.getvalue().splitlines()) == MAX_REPEATS + 1, "other events are not affected"
    clock.now += REPEAT_WINDOW_S
    log.info("once")
    try:
        fail("again")
    except ValueError:
        log.exception("learning failed")
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert "dropped_repeats" not in lines[-2]
    assert lines[-1]["dropped_repeats"] == 100 - MAX_REPEATS


def test_events_that_are_counted_are_bounded() -> None:
    limit = RepeatLimit(SetClock(0.0))
    for number in range(3 * MAX_EVENTS):
        limit.allow(("error", f"event {number}", ""))
    assert len(limit._windows) == MAX_EVENTS


def test_the_standard_librarys_logs_are_limited_by_the_line_that_logs(capsys: pytest.CaptureFixture[str]) -> None:
    structlog_before = structlog.get_config()
    before = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logs.configure_logs()
        for number in range(50):
            logging.getLogger("asyncio").error("Fatal error on transport %s", number)
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    finally:
        structlog.configure(**structlog_before)
        logging.getLogger().handlers[:], logging.getLogger().level = before
    assert len(lines) == MAX_REPEATS
    assert lines[0]["event"] == "Fatal error on transport 0"


def test_a_line_is_written_in_one_piece() -> None:
    class Pieces(StringIO):
        written: ClassVar[list[str]] = []

        def write(self, text: str) -> int:
            self.written.append(text)
            return len(text)

    LossyLogger(Pieces()).info("one")
    assert Pieces.written == ["one\n"]


def test_a_line_that_cannot_be_written_is_dropped() -> None:
    full = Path("/dev/full").open("w")  # noqa: SIM115 (closing it fails)
    logger = LossyLogger(full)
    logger.info("one")
    logger.error("two")
    with suppress(OSError):
        full.close()
    logger.warning("three")


class RecordedWrites(RawIOBase):
    """A raw stream that collects each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.writes.append(bytes(data))
        return len(data)


def test_a_line_to_unbuffered_standard_output_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = RecordedWrites()
    # As Python opens standard output with PYTHONUNBUFFERED.
    unbuffered: Any = raw
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(unbuffered, write_through=True))
    print_line("{}")
    assert [data for data in raw.writes if data] == [b"{}\n"]
