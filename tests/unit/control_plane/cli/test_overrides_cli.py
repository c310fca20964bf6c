"""`penstock drain` and the other override commands: their requests and their output."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import uvicorn
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from adapters.servers.free_ports import LOOPBACK
from adapters.store.members import Member
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access
from control_plane.cli.commands.operating.overrides_commands import seconds_of
from control_plane.cli.error_output import UsageFault
from control_plane.cli.main import app
from control_plane.daemon import ControlPlane
from control_plane.policy.folder import FolderReader
from lab.memory_store import MemoryStore
from penstock.fleet import snapshot
from tests.support.api_app import STEADY_LEASE_S, served
from tests.support.identities import control_plane_keyring
from tests.support.paths import PLANET
from tests.support.wait import PATIENCE_S

TOKEN = "0123456789abcdef"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A control plane on the store in memory, served by a thread of its own."""
    # The leader has led long enough to treat regions without reports as silent.
    monkeypatch.setattr(snapshot, "SETTLE_S", 0.0)
    listener = socket.create_server((LOOPBACK, 0))
    base = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
    up, servers = threading.Event(), list[uvicorn.Server]()

    async def serve() -> None:
        member = Member("north", base)
        control_plane = ControlPlane(
            MemoryStore(),
            member,
            keyring=control_plane_keyring(),
            policy_reader=FolderReader(PLANET),
            leader_lease_s=STEADY_LEASE_S,
        )
        await control_plane.start()
        app = served(control_plane, Access(AdminToken(TOKEN)))
        config = uvicorn.Config(app, log_level="error")
        servers.append(uvicorn.Server(config))
        up.set()
        await servers[0].serve([listener])
        await control_plane.stop()

    # Otherwise the control plane's log would be part of the output of the running command.
    with capture_logs():
        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        assert up.wait(PATIENCE_S)
        yield base
        servers[0].should_exit = True
        thread.join()


@pytest.fixture
def penstock(url: str, tmp_path: Path) -> Any:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    environment = {
        "COLUMNS": "200",
        "PENSTOCK_CONTEXTS_FILE": "/nowhere/contexts.yaml",
        "PENSTOCK_URL": url,
        "PENSTOCK_ADMIN_TOKEN_FILE": str(token),
    }

    def run(*arguments: str) -> Result:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            result = CliRunner(env=environment).invoke(app, arguments)
            not_yet = any(why in result.stderr for why in ("plane leads", "plane answers", "not reported"))
            if not not_yet or time.monotonic() > deadline:
                return result
            time.sleep(0.05)

    return run


class _LosesResponses(BaseHTTPRequestHandler):
    """Forwards requests to a control plane, and closes the connection in place of the first response to a change."""

    url = ""
    lost: ClassVar[list[str]] = []

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
        answer = httpx.request(self.command, self.url + self.path, content=body, headers=headers)
        if self.command != "GET" and self.command not in self.lost:
            self.lost.append(self.command)
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    do_GET = do_PUT = do_DELETE = _forward

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def losing(penstock: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A proxy that loses the first response to each kind of change; the commands connect to it."""
    monkeypatch.setattr(_LosesResponses, "url", url)
    monkeypatch.setattr(_LosesResponses, "lost", [])
    with ThreadingHTTPServer((LOOPBACK, 0), _LosesResponses) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        yield f"http://{LOOPBACK}:{proxy.server_port}"
        proxy.shutdown()
        thread.join()


def test_a_change_whose_response_is_lost_is_made_once(penstock: Any, losing: str) -> None:
    drained = penstock("drain", "eu-de", "--reason", "new disks", "--url", losing, "--output", "json")
    assert drained.exit_code == 0, drained.stderr
    (status,) = printed(drained)
    assert _LosesResponses.lost == ["PUT"]
    assert [each["override"]["id"] for each in printed(penstock("overrides", "list", "--output", "json"))] == [
        status["override"]["id"]
    ]
    lifted = penstock("overrides", "lift", status["override"]["id"], "--reason", "done", "--url", losing)
    assert lifted.exit_code == 0, lifted.stderr
    assert _LosesResponses.lost == ["PUT", "DELETE"]
    actions = [json.loads(line)["action"] for line in penstock("audit", "export").stdout.splitlines()]
    assert actions == ["override.drain", "override.lift"]


def printed(result: Result) -> Any:
    """The JSON that a command printed on the last line."""
    return json.loads(result.stdout.splitlines()[-1])


def test_drain_list_and_undrain(penstock: Any) -> None:
    drained = penstock("drain", "eu-de", "--reason", "new disks", "--for", "2h")
    assert drained.exit_code == 0, drained.stderr
    for word in ("drain", "eu-de", "active 0%", "admin-token", "new disks"):
        assert word in drained.stdout
    status = penstock("status")
    assert "drain of eu-de active, by admin-token: new disks" in status.stdout
    (listed,) = printed(penstock("overrides", "list", "-o", "json"))
    assert (listed["override"]["kind"], listed["override"]["last_resort"]) == ("drain", True)
    again = penstock("drain", "eu-de", "--reason", "new disks", "--for", "2h")
    assert (again.exit_code, listed["override"]["id"] in again.stderr) == (1, True)
    lifted = penstock("undrain", "eu-de", "--reason", "done")
    assert lifted.exit_code == 0, lifted.stderr
    assert "lifted by admin-token" in lifted.stdout
    assert penstock("undrain", "eu-de", "--reason", "done").exit_code == 1


def test_a_dry_run_shows_the_override_and_what_would_move(penstock: Any) -> None:
    shown = penstock("drain", "eu-de", "-r", "new disks", "--dry-run")
    assert (shown.exit_code, shown.stderr) == (0, "dry run: nothing was changed\n")
    for word in ("drain", "eu-de", "active 0%", "when lifted", "after: drain"):
        assert word in shown.stdout
    assert printed(penstock("overrides", "list", "-o", "json")) == []
    assert penstock("drain", "eu-de", "-r", "new disks").exit_code == 0
    for command in (("undrain", "eu-de"), ("drain", "eu-es")):
        result = penstock(*command, "-r", "done", "--dry-run", "-o", "json")
        assert result.exit_code == (0 if command[0] == "undrain" else 1), result.stderr
    assert len(printed(penstock("overrides", "list", "-o", "json"))) == 1


def test_force_overrides_guard_rails(penstock: Any) -> None:
    assert penstock("failover", "eu-de", "-r", "smoke").exit_code == 0
    refused = penstock("drain", "eu-es", "-r", "more smoke")
    assert refused.exit_code == 1
    assert "eu-de+eu-es" in refused.stderr
    assert refused.stderr.endswith("; an admin can set it with --force\n")
    assert penstock("drain", "eu-es", "-r", "more smoke", "--force").exit_code == 0


def test_weight_freeze_and_lift(penstock: Any) -> None:
    assert "active 30%" in penstock("weight", "jp-tok", "0.3", "-r", "hot").stdout
    frozen = printed(penstock("freeze", "-r", "a launch", "--for", "30m", "-o", "json"))
    assert [item["override"]["kind"] for item in frozen] == ["freeze"]
    assert penstock("unfreeze", "-r", "launched").exit_code == 0
    nothing = penstock("unfreeze", "-r", "launched")
    assert (nothing.exit_code, nothing.stderr) == (1, "penstock unfreeze: no freeze is in force\n")
    every = printed(penstock("overrides", "list", "-o", "json"))
    (weighed,) = [item["override"]["id"] for item in every if item["override"]["kind"] == "weight"]
    assert penstock("overrides", "lift", weighed, "-r", "cool").exit_code == 0


def test_invalid_arguments_are_clear_errors(penstock: Any) -> None:
    assert penstock("drain", "eu-de").exit_code == 2
    assert "--for soon" in penstock("drain", "eu-de", "-r", "x", "--for", "soon").stderr
    unknown = penstock("drain", "eu-dd", "-r", "x")
    assert (unknown.exit_code, "did you mean eu-de?" in unknown.stderr) == (2, True)


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("2h", 7200), ("1d12h", 129_600), ("1.5h", 5400), ("none", "none")]
)
def test_durations_are_parsed(written: str, seconds: float | str) -> None:
    assert seconds_of(written) == seconds


@pytest.mark.parametrize("written", ["", "2", "h", "2 h", "-2h", "2h30", "1..5h", "9" * 5])
def test_invalid_durations_are_refused(written: str) -> None:
    with pytest.raises(UsageFault):
        seconds_of(written)
