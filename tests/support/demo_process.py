"""Runs the demo as a process, and finds processes that it did not stop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT

DEMO = [sys.executable, "-m", "tests.support.lab_by_fork", "demo"]


def start(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    state = tmp_path / "state"
    state.mkdir()
    return subprocess.Popen(
        [*DEMO, "--out", str(tmp_path / "out"), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(state)},
    )


def left_behind(tmp_path: Path) -> list[str]:
    """Command lines of running processes that refer to the directory of the test."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            reported = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if process.name != str(os.getpid()) and str(tmp_path / "state").encode() in reported:
            found.append(reported.replace(b"\0", b" ")[:200].decode(errors="replace"))
    return found
