"""Programs started by the fork server have a separate session, environment, directory, log and exit code."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from adapters.servers.process import find_script
from tests.support.fork_server import ForkedProcess, ForkServer
from tests.support.wait import PATIENCE_S

SERVER = ForkServer()


def _start(tmp_path: Path, *arguments: str, name: str = "penstock", **variables: str) -> ForkedProcess:
    with (tmp_path / "log").open("ab") as log:
        process = SERVER.spawn([find_script(name), *arguments], {**os.environ, **variables}, log)
    assert isinstance(process, ForkedProcess)
    return process


def test_output_and_exit_code_are_those_of_the_program(tmp_path: Path) -> None:
    process = _start(tmp_path, "--version")
    assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "log").read_text().startswith("penstock ")
    assert _start(tmp_path, "no-such-command").wait(PATIENCE_S) == 2
    assert "no-such-command" in (tmp_path / "log").read_text()


def test_environment_and_directory_are_as_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy").mkdir()
    monkeypatch.chdir(tmp_path)
    process = _start(tmp_path, "serve", "--check-config", PENSTOCK_POLICY_DIR="policy", PENSTOCK_NAME="a b")
    assert process.wait(PATIENCE_S) == 2
    assert "PENSTOCK_NAME" in (tmp_path / "log").read_text()


def test_a_running_program_has_a_session_of_its_own_and_can_be_killed(tmp_path: Path) -> None:
    (tmp_path / "wan.json").write_text('{"links": []}')
    process = _start(tmp_path, "wan", "--config", str(tmp_path / "wan.json"), name="penstock-lab")
    assert os.getsid(process.pid) == process.pid
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.0)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_another_linker_environment_executes_the_program(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
        process = SERVER.spawn([find_script("penstock"), "--version"], environment, log)
    assert isinstance(process, subprocess.Popen)
    assert process.wait(PATIENCE_S) == 0
