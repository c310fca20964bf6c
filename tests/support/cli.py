"""Runs `penstock` in the process of the test, with a wide terminal so that no table wraps, and without contexts."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from control_plane.cli.main import app


def run(*arguments: str) -> Result:
    """Run a command and return its output and exit code."""
    return CliRunner(env={"COLUMNS": "200", "PENSTOCK_CONTEXTS_FILE": "/nowhere/contexts.yaml"}).invoke(app, arguments)
