"""`penstock-lab` finds every command, and imports only the requested one."""

from __future__ import annotations

import subprocess
import sys

from typer.testing import CliRunner

from lab.cli import COMMANDS, app


def test_every_command_is_listed_and_explains_itself() -> None:
    listed = CliRunner().invoke(app, ["--help"])
    assert listed.exit_code == 0
    assert {"bench-planner", "bench-propagation"} < set(COMMANDS)
    for name in COMMANDS:
        assert name in listed.output
        assert CliRunner().invoke(app, [name, "--help"]).exit_code == 0


def test_an_unknown_command_is_exit_code_two() -> None:
    assert CliRunner().invoke(app, ["nothing"]).exit_code == 2


def test_an_engine_starts_without_what_only_others_need() -> None:
    run = "app(['engines', '--config', '/does/not/exist'], standalone_mode=False)"
    script = f"import sys; from lab.cli import app; {run}; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    # The operators' command imports its commands on demand with the same class.
    modules = set(result.stdout.split()) - {"control_plane.cli", "control_plane.cli.lazy_commands"}
    assert "lab.commands.engine_command" in modules
    assert not [
        name
        for name in modules
        if name.startswith(("lab.demo", "lab.replay", "lab.wan", "penstock.", "control_plane."))
    ]
