"""Ctrl-C ends the demo at any time, and leaves nothing behind."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.demo_process import left_behind, start


@pytest.mark.timeout(90)
@pytest.mark.parametrize("when", ["while it starts", "while it is told"])
def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, when: str) -> None:
    telling = start(tmp_path)
    assert telling.stdout is not None
    if when == "while it is told":
        while "Steady state" not in (line := telling.stdout.readline()):
            assert line, "the demo ended by itself"
    else:
        while not left_behind(tmp_path)[1:]:
            assert telling.poll() is None
    telling.send_signal(signal.SIGINT)
    said, _ = telling.communicate(timeout=60)
    assert telling.returncode == 130, said
    assert "stopped" in said
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "state").iterdir()) == []
