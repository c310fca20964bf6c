"""Ends a child process with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
"""From Linux's prctl(2)."""


def end_with_parent() -> None:
    """Make the kernel send SIGTERM to this process when its parent ends for any reason. Linux only."""
    parent = os.getppid()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)
