"""`penstock serve` as a process, since it configures the process's logs: a failed start names the cause."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.support.identities import control_plane_id, write_identity
from tests.support.paths import POLICIES
from tests.support.programs import run_program

TOKEN = "0123456789abcdef"


def serve(**settings: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    env = clean | {f"PENSTOCK_{name.upper()}": value for name, value in settings.items()}
    done = run_program("penstock", "serve", env=env)
    assert "Traceback" not in done.stdout
    return done.returncode, done.stdout


def test_invalid_settings_are_named() -> None:
    code, reported = serve(listen="nonsense")
    assert code == 2
    assert "penstock serve: PENSTOCK_NAME: not set" in reported
    assert "penstock serve: PENSTOCK_LISTEN: 'nonsense' is not of the form host:port" in reported


def test_invalid_secrets_and_a_used_port_are_named(tmp_path: Path) -> None:
    identity, token = tmp_path / "identity", tmp_path / "token"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = {
            "name": "north",
            "listen": listen,
            "etcd_endpoints": "127.0.0.1:1",
            "policy_dir": str(POLICIES / "planet"),
            "identity_dir": str(identity),
            "admin_token_file": str(token),
        }
        no_identity = serve(**settings)
        write_identity(identity, control_plane_id("north"))
        no_token = serve(**settings)
        token.write_text(TOKEN)
        no_port = serve(**settings)
    assert [code for code, _ in (no_identity, no_token, no_port)] == [2, 2, 2]
    assert f"penstock serve: {identity}/tls.key: cannot read the private key" in no_identity[1]
    assert f"penstock serve: {token}: cannot read the admin token" in no_token[1]
    assert f"penstock serve: cannot listen on {listen}: Address already in use; choose another" in no_port[1]
