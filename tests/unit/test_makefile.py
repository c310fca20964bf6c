"""What `make` says when it cannot set itself up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def test_packages_that_cannot_be_had(tmp_path: Path) -> None:
    pip = tmp_path / "venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text("#!/bin/sh\nexit 1\n")
    pip.chmod(0o755)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
    done = subprocess.run(
        ["make", "-C", str(CHECKOUT), f"VENV={tmp_path / 'venv'}", "demo"],
        env=outside,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip could not install everything" in done.stderr
    assert "PIP_INDEX_URL" in done.stderr
    assert not (tmp_path / "venv" / ".demo").exists(), "the next make has to try again"
