"""Standard output for results alone: other code of a process, libraries included, cannot write between them.

Libraries print: HiGHS 1.16 writes a banner to descriptor 1 when its first solver is made. A program that reads JSON, or
the replies of a child process, must receive nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from contextvars import ContextVar
from io import TextIOWrapper
from typing import TextIO

STDOUT, STDERR = 1, 2

_results: ContextVar[TextIO | None] = ContextVar("results", default=None)


def divert_native_output() -> None:
    """Send what native code writes to standard output to standard error, until the process ends.

    `sys.stdout` still writes to standard output, by another descriptor. Descriptor 1 is not restored, because native
    code may flush its buffers at exit. No effect where standard output is closed.
    """
    before = sys.stdout
    try:
        if not isinstance(before, TextIOWrapper) or before.fileno() != STDOUT:
            return
        before.flush()
        descriptor = os.dup(STDOUT)
        os.dup2(STDERR, STDOUT)
    except OSError:
        return
    sys.stdout = TextIOWrapper(
        os.fdopen(descriptor, "wb"),
        before.encoding,
        before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )


@contextmanager
def results_only() -> Iterator[TextIO]:
    """Send what Python code prints to standard error, except for what is written to `results()`, which this returns."""
    stream = results()
    token = _results.set(stream)
    try:
        with redirect_stdout(sys.stderr):
            yield stream
    finally:
        _results.reset(token)


def results() -> TextIO:
    """Return the stream of results: standard output."""
    return _results.get() or sys.stdout
