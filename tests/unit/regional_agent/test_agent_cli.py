"""`penstock-agent` as a process, since it configures the process's logs: a failed start names the cause."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.support.identities import agent_id, write_identity
from tests.support.programs import run_program


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """Valid settings, of an agent whose etcd is unavailable."""
    (tmp_path / "endpoints.yaml").write_text("[]")
    return {
        "REGION": "eu-de",
        "NAME": "a",
        **{f"{face}_LISTEN": "127.0.0.1:0" for face in ("TRAFFIC", "PEER", "ADMIN")},
        "ETCD_ENDPOINTS": "127.0.0.1:1",
        "ENDPOINTS_FILE": str(tmp_path / "endpoints.yaml"),
        "IDENTITY_DIR": str(write_identity(tmp_path / "identity", agent_id("eu-de", "a"))),
        "STATE_DIR": str(tmp_path / "state"),
    }


def agent(settings: dict[str, str]) -> tuple[int, str]:
    """Run the agent; returns the exit code and the last line of its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env = clean | {f"PENSTOCK_AGENT_{name}": value for name, value in settings.items()}
    done = run_program("penstock-agent", env=env)
    return done.returncode, done.stdout.strip().rpartition("\n")[2]


def test_names_a_port_in_use(settings: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        code, reported = agent(settings | {"ADMIN_LISTEN": listen})
    assert (code, reported) == (
        2,
        f"PENSTOCK_AGENT_ADMIN_LISTEN: cannot listen on {listen}: Address already in use; "
        "choose another address or port",
    )


def test_names_a_state_directory_that_cannot_be_created(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    state = tmp_path / "file" / "state"
    code, reported = agent(settings | {"STATE_DIR": str(state)})
    assert (code, reported) == (
        2,
        f"PENSTOCK_AGENT_STATE_DIR: {state}: Not a directory; name a directory that the agent may create",
    )
