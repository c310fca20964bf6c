"""The set-up of `make`, and its errors."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.paths import ROOT

CHECKOUT = ROOT


def make(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    outside.pop("PYTHON", None)
    return subprocess.run(
        ["make", "-C", str(CHECKOUT), "--no-print-directory", *arguments],
        env=outside | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def command(path: Path, *, exit_status: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {exit_status}\n")
    path.chmod(0o755)


def test_the_oldest_python_that_runs_is_chosen(tmp_path: Path) -> None:
    command(tmp_path / "python3.11", exit_status=127)
    command(tmp_path / "python3.12", exit_status=0)
    command(tmp_path / "python3.13", exit_status=0)
    done = make("--eval=chosen:; @echo $(PYTHON)", "chosen", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.stdout == f"{tmp_path}/python3.12\n"


def test_packages_that_cannot_be_had(tmp_path: Path) -> None:
    command(tmp_path / "venv" / "bin" / "pip", exit_status=1)
    done = make(f"VENV={tmp_path / 'venv'}", "demo")
    assert done.returncode == 2
    assert "pip could not install everything" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    assert not (tmp_path / "venv" / ".demo").exists(), "the next make has to try again"
