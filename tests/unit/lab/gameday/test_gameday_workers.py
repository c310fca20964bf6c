"""Threads that act on the fleet during a fault."""

from __future__ import annotations

import threading

from lab.gameday.workers import Workers


def test_functions_receive_the_event_that_ends_them() -> None:
    ran, ended = threading.Event(), threading.Event()

    def function(stopped: threading.Event) -> None:
        ran.set()
        stopped.wait()
        ended.set()

    workers = Workers(function)
    assert ran.wait(60.0)
    assert not ended.is_set()
    workers.stop()
    assert ended.is_set()
