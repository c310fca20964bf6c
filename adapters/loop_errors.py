"""Errors that an event loop reports to its exception handler, without those that a disconnecting client causes.

uvloop's TLS protocol catches the error of a write to a connection that the client has closed meanwhile. It reports any
error that is no OSError: the RuntimeError of a TCP handle that is closed already, or the IndexError of a write backlog
that the loss of the connection has emptied (`SSLProtocol._process_outgoing` and `_do_write` in uvloop/sslproto.pyx).
"""

from __future__ import annotations

import asyncio
from typing import Any

import structlog

_log = structlog.get_logger()

_MESSAGE = "Fatal error on SSL protocol"
_SOURCES = "uvloop/"
"""Prefix of uvloop's files in tracebacks."""


def report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop; the disconnect of a client by TLS at debug level and without a traceback.

    A handler for `loop.set_exception_handler`.
    """
    error = context.get("exception")
    if context.get("message") == _MESSAGE and isinstance(error, RuntimeError | IndexError) and _is_of_uvloop(error):
        _log.debug("the client disconnected while data was sent", error=str(error))
    else:
        loop.default_exception_handler(context)


def _is_of_uvloop(error: BaseException) -> bool:
    """Whether uvloop has raised the error, and not a protocol that uvloop has called."""
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return frames is not None and frames.tb_frame.f_code.co_filename.startswith(_SOURCES)
