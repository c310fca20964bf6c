"""Commands for emergencies import only the modules they need: no planner, no git client, no web server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("apscheduler", "dulwich", "etcd3", "fastapi", "grpc", "highspy", "numpy", "structlog", "uvicorn")

PROGRAM = f"""
import sys
from control_plane.cli.main import main
try:
    main()
except SystemExit:
    pass
print("loaded:", *sorted(sys.modules.keys() & set({HEAVY})))
"""


def loaded(*arguments: str, **environment: str) -> str:
    """The heavy modules that a command loads, and its output on stderr."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={"PYTHONPATH": ":".join(filter(None, sys.path)), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()[-1] + done.stderr


def test_the_list_of_commands_imports_few_modules() -> None:
    assert loaded("--help") == "loaded:"


@pytest.mark.parametrize(
    "command",
    ["explain --origin eu-de --model m", "drain eu-de --reason x"],
)
def test_a_command_that_calls_a_control_plane_imports_few_modules(command: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    # No server listens there: the command runs up to the connection.
    said = loaded(*command.split(), PENSTOCK_URL="http://127.0.0.1:1", PENSTOCK_ADMIN_TOKEN_FILE=str(token))
    assert said.startswith("loaded:penstock ")
    assert "no control plane answers" in said
