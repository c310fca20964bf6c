"""Logs as JSON lines on standard error, those of libraries among them."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs() -> None:
    """Send structlog's and the standard library's logs the same way; call once, before anything logs."""
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        # As text and without local variables, which may hold secrets.
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[*shared, render],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # A tick that is skipped because the one before waits for the store is no news.
    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)
