"""The whole demo on real processes, told faster: every promise kept, a report that says so, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = [str(Path(sys.executable).with_name("penstock-lab")), "demo"]


def start(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    state = tmp_path / "state"
    state.mkdir()
    return subprocess.Popen(
        [*DEMO, "--out", str(tmp_path / "out"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(state)},
    )


def left_behind(tmp_path: Path) -> list[str]:
    """Command lines of processes that were told of this test's files."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if process.name != str(os.getpid()) and str(tmp_path / "state").encode() in told:
            found.append(told.replace(b"\0", b" ")[:200].decode(errors="replace"))
    return found


@pytest.mark.timeout(240)
def test_every_promise_is_kept(tmp_path: Path) -> None:
    telling = start(tmp_path, "--pace", "0.6")
    said, _ = telling.communicate(timeout=200)
    assert telling.returncode == 0, said
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["residency"]["violations"] == 0
    assert report["residency"]["checked"] >= report["requests"]["ok"] > 200
    assert report["spillover"]["in_surge"] > 0
    assert report["failover"]["rerouted_s"] <= 1.0
    assert report["failover"]["lost_not_started"] == 0
    assert report["failback"]["seconds"] > 0
    assert report["control_plane_loss"]["failed_requests"] == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Every promise was kept" in page
    assert "every promise was kept" in said
    assert left_behind(tmp_path) == []
    assert list((tmp_path / "state").iterdir()) == []


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
