"""`penstock` as a test calls it, in this process: wide enough that no table wraps, and without contexts."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from control_plane.cli.main import app


def run(*arguments: str) -> Result:
    """What a command prints, and its exit code."""
    return CliRunner(env={"COLUMNS": "200", "PENSTOCK_CONTEXTS_FILE": "/nowhere/contexts.yaml"}).invoke(app, arguments)
