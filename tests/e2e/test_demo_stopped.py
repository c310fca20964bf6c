"""Ctrl-C ends the demo at any time, and leaves nothing behind."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.demo_process import left_behind, start


@pytest.mark.timeout(300)
@pytest.mark.parametrize("when", ["while it starts", pytest.param("while it serves", marks=pytest.mark.long)])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, when: str) -> None:
    demo = start(tmp_path)
    assert demo.stdout is not None
    if when == "while it serves":
        printed = [demo.stdout.readline()]
        while "Steady state" not in printed[-1]:
            assert printed[-1], f"the demo ended by itself: {printed}"
            printed.append(demo.stdout.readline())
    else:
        while not left_behind(tmp_path)[1:]:
            assert demo.poll() is None
            time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=200)
    assert demo.returncode == 130, output
    assert "stopped" in output
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "state").iterdir()) == []
