"""The `penstock` command: its output and its errors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from adapters.servers.process import find_script
from adapters.store.members import Member
from control_plane.auth.admin_token import AdminToken, may_resend_credential
from control_plane.cli.api_client import ApiClient, NoLeader
from control_plane.cli.commands.operating import drill_commands
from control_plane.cli.contexts import BadContexts, load_contexts
from control_plane.cli.main import app
from control_plane.cli.views.rollout_view import model_rollout_view, rollout_view
from control_plane.cli.views.status_view import status_view
from control_plane.drills.drill_resource import drill_report
from control_plane.policy.source.revision import Origin
from control_plane.rollout.model_rollout_resource import ModelRolloutStatus, VersionResults, model_summary
from control_plane.rollout.rollout_resource import RolloutStatus, summary
from control_plane.status.status import (
    AgentStatus,
    ArcStatus,
    DemandStatus,
    LeaderStatus,
    PlanStatus,
    PolicyStatus,
    PoolStatus,
    RegionStatus,
    Status,
    StoreStatus,
)
from penstock.drills.drill_state import Drill, DrillPhase, DrillRequest, DrillStep
from penstock.health.region_health import RegionState
from penstock.log_chains.audit_log_chain import BEGINNING, AuditEntry, AuditHead, ChainFault, sealed
from penstock.planning.plan import ArcReason
from penstock.policy.kinds.model_rollouts import ModelRollout
from penstock.policy.kinds.operations import Exercise
from penstock.policy.provenance import Provenance
from penstock.rollout.model_rollout import begin
from penstock.rollout.policy_rollout import Phase, Rollout
from penstock.rollout.region_evidence import RegionEvidence, RequestResults
from penstock.rollout.rollout_progress import Condition, RolloutOutlook, VersionOutlook, WaitingPolicy
from tests.support.cli import run
from tests.support.paths import POLICIES

TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("phase", "applied"), [("shadow", "cd"), ("canary", "cd"), ("rolled_back", "cd"), ("watch", "ef"), ("done", "ef")]
)
def test_the_heading_names_the_policy_in_force_and_not_the_latest_of_the_source(phase: str, applied: str) -> None:
    known = {
        digest: Provenance("policy", "main", digest * 20, "operator", 0.0, f"commit {digest}")
        for digest in ("cd", "ef")
    }
    stable = "ef" if phase == "done" else "cd"
    rollout = Rollout(
        2, "ef" * 32, stable * 32, Phase(phase), 0.0, 0.0, "as it is", "", known["ef"], known[stable], ("eu-es",)
    )
    outlook = RolloutOutlook(
        (Condition("3 of 50 requests ended", False), Condition("5 of 5 s", True, 0.0)),
        waiting=WaitingPolicy("ab" * 32, 1, "rollout 2 completes first", 12.0),
        versions=(VersionOutlook("chat to v2", "preparing at 0 %, waits for: a ready endpoint"),),
    )
    status = status_of("a", "http://a", LeaderStatus("a", "http://a", 7))
    status = msgspec.structs.replace(
        status,
        policy=msgspec.structs.replace(status.policy, digest="ef" * 32),
        rollout=summary(rollout),
        outlook=outlook,
    )
    console = Console(width=200, file=StringIO())
    console.print(status_view(status))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert f"plan 42, 3 s old · policy {applied * 6}\n" in shown
    assert f"commit {applied}" in shown
    assert ("rollout 2 of policy efefefefefef" in shown) is (phase != "done")
    assert "waits for: 3 of 50 requests ended\n" in shown
    assert "policy abababababab of the source is not rolled out, number 1 in the queue" in shown
    assert "it begins in 12 s at the earliest" in shown
    assert "rollout of chat to v2: preparing at 0 %, waits for: a ready endpoint\n" in shown
    console.file.truncate(0)
    results = RequestResults(40, 0.05, 0.2)
    evidence = (RegionEvidence("eu-es", True, results, RequestResults(0, 0.0, None)),)
    console.print(rollout_view(RolloutStatus(summary(rollout), (), (), None, None, evidence, outlook)))
    shown = console.file.getvalue()
    assert f"in force policy {applied * 6}, commit" in shown
    assert ("candidate policy efefefefefef" in shown) is (applied == "cd")
    for word in ("3 of 50 requests ended", "number 1 in the queue", "candidate", "40", "5.0%", "200 ms"):
        assert word in shown, word


def test_agents_that_cannot_serve_are_named() -> None:
    status = status_of("a", "http://a", LeaderStatus("a", "http://a", 7))
    agents = (
        AgentStatus("eu-ed", "typo", True, "http://p", "http://a", None),
        AgentStatus("eu-es", "other-key", True, "http://p", "http://a", None),
    )

    def shown(role_age_s: float) -> str:
        console = Console(width=200, file=StringIO())
        console.print(status_view(msgspec.structs.replace(status, agents=agents, role_age_s=role_age_s)))
        assert isinstance(console.file, StringIO)
        return console.file.getvalue()

    assert "eu-ed/typo is in no use: the policy has no region eu-ed" in shown(1.0)
    assert "eu-es/other-key is registered, and no report of it was accepted" in shown(12.0)
    assert "eu-es/other-key" not in shown(1.0), "a new leader has received no report yet"
    agents = (msgspec.structs.replace(agents[1], rejected_files=("endpoints.yaml:3: slots: 0",), report_age_s=0.1),)
    assert "eu-es/other-key rejected a file, the last valid one is in force: endpoints.yaml:3: slots: 0" in shown(12.0)


def status_of(name: str, url: str, leader: LeaderStatus | None) -> Status:
    return Status(
        at=1000.0,
        name=name,
        url=url,
        leading=leader is not None and leader.name == name,
        role="leader",
        role_age_s=12.0,
        why="made the leader key first",
        epoch=7,
        leader=leader,
        store=StoreStatus(up=False),
        policy=PolicyStatus("ab" * 32, Origin.FOLDER, ("spillover.yaml:4: is wrong; correct it",)),
        plan=PlanStatus(42, 7, "ab" * 32, 3.0),
        regions=(
            RegionStatus("eu-de", "Frankfurt", "DE", 50.0, 8.0, RegionState.HEALTHY, 60.0, 0.5,
                         (PoolStatus("m", 4, 4, 64, 17, 1.0),), (DemandStatus("m", "eu-de", 9.5),)),
            RegionStatus("eu-es", "Madrid", "ES", 40.0, -3.0, RegionState.UNKNOWN, None, None, (), ()),
        ),
        agents=(AgentStatus("eu-de", "one", True, "http://p", "http://a", 0.5, refused_plan="older epoch"),),
        control_planes=(Member(name, url),),
        arcs=(
            ArcStatus("eu-de", "eu-de", "m", "eu-de+eu-es", 0.75, ArcReason.HOME),
            ArcStatus("eu-de", "eu-es", "m", "eu-de+eu-es", 0.25, ArcReason.SPILLOVER),
        ),
    )  # fmt: skip


class FakeControlPlane(ThreadingHTTPServer):
    """Serves given content at /v1/status and /v1/audit/export on a real socket."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _StatusHandler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.answer = b"{}"
        self.code = 200
        self.audit = b""
        self.made = b""
        """The answer to a change."""
        self.drill: list[tuple[int, bytes]] = []
        """Statuses and bodies of the next answers at /v1/drills/1."""


class _StatusHandler(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        assert isinstance(self.server, FakeControlPlane)
        self.send_response(200)
        self.send_header("content-length", str(len(self.server.made)))
        self.end_headers()
        self.wfile.write(self.server.made)

    def do_GET(self) -> None:
        assert isinstance(self.server, FakeControlPlane)
        answers = {"/v1/status": self.server.answer, "/v1/audit/export": self.server.audit}
        answers["/v1/drills?limit=1"] = b'{"items": [], "next_cursor": null}'
        code = self.server.code
        if self.path == "/v1/drills/1":
            code, answers[self.path] = self.server.drill.pop(0)
        allowed = self.path in answers and self.headers["authorization"] == f"Bearer {TOKEN}"
        answer = answers.get(self.path, b"{}")
        self.send_response(code if allowed else 401)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[list[FakeControlPlane]]:
    pair = [FakeControlPlane(), FakeControlPlane()]
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}) for server in pair]
    for thread in threads:
        thread.start()
    yield pair
    for server, thread in zip(pair, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return str(path)


class TestStatus:
    def test_the_leader_is_found_through_any_control_plane(self, servers: list[FakeControlPlane], token: str) -> None:
        follower, leader = servers
        seat = LeaderStatus("north", leader.url, 7)
        follower.answer = msgspec.json.encode(status_of("south", follower.url, seat))
        leader.answer = msgspec.json.encode(status_of("north", leader.url, seat))
        urls = f"http://127.0.0.1:1,{follower.url}"
        result = run("status", "--url", urls, "--token-file", token, "-o", "json")
        assert result.exit_code == 0
        assert msgspec.json.decode(result.stdout, type=Status).name == "north"

    def test_a_follower_is_used_if_the_leader_does_not_respond(
        self, servers: list[FakeControlPlane], token: str
    ) -> None:
        follower, leader = servers
        follower.answer = msgspec.json.encode(status_of("south", follower.url, LeaderStatus("north", leader.url, 7)))
        leader.code = 500
        result = run("status", "--url", follower.url, "--token-file", token, "-o", "json")
        assert msgspec.json.decode(result.stdout, type=Status).name == "south"

    def test_a_change_is_sent_through_any_control_plane_while_there_is_a_leader(
        self, servers: list[FakeControlPlane], token: str
    ) -> None:
        follower = servers[0]
        far = LeaderStatus("north", "http://127.0.0.1:1", 7)
        with ApiClient([follower.url], AdminToken(TOKEN)) as api:
            follower.answer = msgspec.json.encode(status_of("south", follower.url, far))
            assert api.request("PUT", "/v1/overrides/x", body={}, changes=True).url == follower.url
            follower.answer = msgspec.json.encode(status_of("south", follower.url, None))
            with pytest.raises(NoLeader):
                api.request("PUT", "/v1/overrides/x", body={}, changes=True)

    @pytest.mark.parametrize("command", ["undrain", "tenant show", "tenant delete", "overrides lift"])
    def test_an_empty_name_is_no_other_path(self, servers: list[FakeControlPlane], token: str, command: str) -> None:
        reason = () if command == "tenant show" else ("--reason", "x")
        result = run(*command.split(), "", "--url", servers[0].url, "--token-file", token, *reason)
        assert result.exit_code == 2
        assert "is empty" in result.stderr

    def test_the_table_shows_each_region(self, servers: list[FakeControlPlane], token: str) -> None:
        server = servers[0]
        server.answer = msgspec.json.encode(status_of("north", server.url, LeaderStatus("north", server.url, 7)))
        shown = run("status", "--url", server.url, "--token-file", token).stdout
        for piece in (
            "leader north (epoch 7)",
            "plan 42, 3 s old",
            "Frankfurt",
            "healthy 60 s",
            "m 17/64",
            "9.5",
            "never",
            "eu-de 75% (home), eu-es 25% (spillover)",
            "the store does not answer",
            "policy refused: spillover.yaml:4: is wrong; correct it",
            "eu-de/one refused the plan: older epoch",
        ):
            assert piece in shown, piece

    @pytest.mark.parametrize("output", ["table", "json"])
    def test_watching_continues_while_no_control_plane_responds(
        self, servers: list[FakeControlPlane], token: str, monkeypatch: pytest.MonkeyPatch, output: str
    ) -> None:
        server = servers[0]
        server.answer = msgspec.json.encode(status_of("north", server.url, LeaderStatus("north", server.url, 7)))
        looks = iter([500, 200, None])

        def sleep(_: float) -> None:
            server.code = next(looks) or server.code
            if server.code == 200 and looks.__length_hint__() == 0:
                raise KeyboardInterrupt

        monkeypatch.setattr("control_plane.cli.repeated_output.time.sleep", sleep)
        result = run("status", "--watch", "--url", server.url, "--token-file", token, "-o", output)
        assert result.exit_code == 0
        assert result.stderr.count("no control plane answers") == 1
        assert result.stdout.count("leader north" if output == "table" else '"leading":true') == 2

    def test_no_control_plane_responds(self, token: str) -> None:
        result = run("status", "--url", "http://127.0.0.1:1", "--token-file", token)
        assert result.exit_code == 1
        assert "penstock status: no control plane answers: http://127.0.0.1:1:" in result.stderr

    def test_a_server_of_tls_that_is_reached_without_is_an_error_with_the_remedy(self, token: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:

            def close() -> None:
                accepted = listening.accept()[0]
                accepted.recv(65_536)  # unread data would reset the connection
                accepted.close()

            threading.Thread(target=close, daemon=True).start()
            result = run("status", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}", "--token-file", token)
        assert (result.exit_code, "if the server uses TLS: use https://" in result.stderr) == (1, True)

    def test_a_plain_text_server_or_a_bad_url_is_an_error_with_the_remedy(
        self, servers: list[FakeControlPlane], token: str
    ) -> None:
        result = run("status", "--url", servers[0].url.replace("http:", "https:"), "--token-file", token)
        assert (result.exit_code, "the server does not use TLS: use http://" in result.stderr) == (1, True)
        for url in ("localhost:8400", "http://", "https://me:secret@cp-1:8443"):
            result = run("status", "--url", url, "--token-file", token)
            assert result.exit_code == 2
            assert "https://host:port" in result.stderr or "names a user" in result.stderr
            assert "secret" not in result.stderr

    def test_a_response_of_another_server_is_named(self, servers: list[FakeControlPlane], token: str) -> None:
        servers[0].code = 404
        result = run("status", "--url", servers[0].url, "--token-file", token)
        assert result.stderr == f"penstock status: no control plane answers: {servers[0].url}: HTTP status 404\n"

    def test_an_invalid_status_is_an_error(self, servers: list[FakeControlPlane], token: str) -> None:
        result = run("status", "--url", servers[0].url, "--token-file", token)
        assert result.exit_code == 1
        assert "the response does not match this version" in result.stderr

    def test_a_wrong_token_is_an_error(self, servers: list[FakeControlPlane], tmp_path: Path) -> None:
        wrong = tmp_path / "wrong"
        wrong.write_text("f" * 16)
        result = run("status", "--url", servers[0].url, "--token-file", str(wrong))
        assert result.exit_code == 2
        assert "the token was rejected" in result.stderr

    def test_a_missing_token_file_is_an_error(self) -> None:
        result = run("status", "--url", "http://127.0.0.1:1", "--token-file", "/nowhere")
        assert result.exit_code == 2
        assert "/nowhere: cannot read the admin token" in result.stderr

    def test_a_missing_url_is_an_error(self) -> None:
        result = run("status")
        assert result.exit_code == 2
        assert "penstock status: no control plane is selected; give --url or --context" in result.stderr


@pytest.mark.parametrize(("failure", "exit_code"), [(503, 0), (403, 1)])
def test_a_drill_is_awaited_while_the_store_does_not_answer(
    failure: int, exit_code: int, servers: list[FakeControlPlane], token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drill_commands, "POLL_S", 0.0)

    def drill(phase: DrillPhase) -> bytes:
        request = DrillRequest(Exercise.STEP_DOWN, None, 60.0, 2.0, "a test", "duty")
        steps = (DrillStep(phase, 1000.0, "as it is"),)
        return msgspec.json.encode(drill_report(Drill(1, request, steps, 7, "north", 42, 1)))

    server = servers[0]
    server.answer = msgspec.json.encode(status_of("north", server.url, LeaderStatus("north", server.url, 7)))
    server.made = drill(DrillPhase.PREPARED)
    server.drill = [(failure, b'{"detail": "the store did not answer"}'), (200, drill(DrillPhase.DONE))]
    result = run("drill", "step-down", "--reason", "a test", "--url", server.url, "--token-file", token)
    assert result.exit_code == exit_code, result.stderr
    assert ("drill 1: leader steps down, done" in result.stdout) == (exit_code == 0)


@pytest.mark.parametrize(
    ("asked", "leader", "follows"),
    [
        ("https://a:1", "https://b:1", True),
        ("http://a:1", "http://b:1", True),
        ("http://a:1", "https://b:1", True),
        ("https://a:1", "http://b:1", False),
    ],
)
def test_a_token_is_not_sent_without_tls(asked: str, leader: str, follows: bool) -> None:
    assert may_resend_credential(asked, leader) is follows


WITHOUT_JSON = {
    "serve",
    "quickstart",
    "join",
    "invite",
    "audit export",
    "policy schema",
    "dns export",
    "dns update",
    "anycast",
}
"""What goes on, prints one word for the next command, or JSON or YAML and nothing else."""


def every_command(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name in group.commands:
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from every_command(command, f"{name} ")
        elif not command.hidden:
            yield before + name, command


def test_every_command_prints_json_on_request() -> None:
    commands = dict(every_command(typer.main.get_group(app)))
    assert len(commands) > 30
    with_json = {
        name for name, command in commands.items() if any("--output" in param.opts for param in command.params)
    }
    assert commands.keys() - with_json == WITHOUT_JSON


@pytest.mark.parametrize("how", [["-o", "json"], ["-ojson"], ["--output", "json"], ["--output=json"]])
@pytest.mark.parametrize(
    ("given", "code", "reported"),
    [
        ("status", 2, "no control plane is selected; give --url or --context"),
        ("status --url http://127.0.0.1:1 --token-file {token}", 1, "no control plane answers"),
        (
            "status --url north:80 --token-file {token}",
            2,
            "'north:80' is not of the form http://host:port or https://host:port",
        ),
        ("status --url http://127.0.0.1:1 --token-file /nowhere", 2, "cannot read the admin token"),
        ("drain eu-de", 2, "Missing option '--reason'"),
        ("weight eu-de much --reason x", 2, "VALUE"),
        ("explain", 2, "give --origin and --model"),
        ("explain --origin eu-de --model m --country XX", 2, "'XX' is no country"),
        ("context use nowhere", 2, "no context 'nowhere'"),
        ("policy lint /nowhere", 2, "/nowhere is not a folder"),
        ("polcy", 2, "No such command 'polcy'"),
        ("audit verify /nowhere", 2, "/nowhere: cannot be read: No such file or directory"),
        (f"policy lint {'long' * 1_100}", 2, "is not a folder"),
        (f"audit verify /dev/null --kept {'9' * 5_000}:{'0' * 64}", 2, "must be number:hash"),
        ("drain eu-de --reason \udcff", 2, r"'\udcff' is not UTF-8"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else None,
)
def test_errors_are_json_too(given: str, code: int, reported: str, how: list[str], token: str) -> None:
    result = run(*given.format(token=token).split(), *how)
    assert result.exit_code == code
    error = msgspec.json.decode(result.stdout)["error"]
    assert error.keys() == {"message", "exit_code", "errors", "problem"}
    assert reported.lower() in error["message"].lower()
    assert error["exit_code"] == code
    assert result.stderr != ""
    assert run(*given.format(token=token).split()).stdout == ""


@pytest.mark.parametrize("command", ["verify {bad}", "diff {bad} {good}", "diff {good} {bad}", "simulate {bad} {good}"])
def test_errors_of_a_bundle_are_the_json_of_lint(command: str, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("kind: Nothing\n")
    words = command.format(bad=tmp_path, good=POLICIES / "examples" / "smallest").split()
    result = run("policy", *words, "-o", "json")
    assert result.exit_code == 2
    linted = msgspec.json.decode(run("policy", "lint", str(tmp_path), "-o", "json").stdout)
    error = msgspec.json.decode(result.stdout)["error"]
    assert error["errors"] == linted["errors"]
    assert error["message"].endswith(f"refused, {len(linted['errors'])} error(s)")


def test_a_similar_command_is_suggested() -> None:
    result = run("polcy")
    assert result.exit_code == 2
    assert "Did you mean 'policy'?" in result.stderr


def test_an_audit_log_is_read_with_any_separators_in_its_texts(
    servers: list[FakeControlPlane], token: str, tmp_path: Path
) -> None:
    lines, head = [], BEGINNING
    for reason in ("one\u2028two", "one\x85two", "\u2029"):
        entry = sealed(AuditEntry(head.seq + 1, 1.0, "duty", "admin", "override.drain", "x", reason, head.hash))
        head = AuditHead(entry.seq, entry.hash)
        lines.append(msgspec.json.encode(entry, order="sorted") + b"\n")
    north, _ = servers
    north.answer = msgspec.json.encode(status_of("north", north.url, LeaderStatus("north", north.url, 7)))
    north.audit = b"".join(lines)
    asking = ("--url", north.url, "--token-file", token)
    reported = f"whole: 3 entries, the last is 3:{head.hash}\n"
    assert run("audit", "verify", *asking).stdout == reported
    exported = tmp_path / "audit.jsonl"
    assert run("audit", "export", str(exported), *asking).exit_code == 0
    assert run("audit", "verify", str(exported)).stdout == reported


def test_an_unreadable_audit_entry_is_reported(tmp_path: Path) -> None:
    exported = tmp_path / "audit.jsonl"
    first = sealed(AuditEntry(1, 1.0, "duty", "admin", "override.drain", "x", "", BEGINNING.hash))
    second = ChainFault(2, "audit/2 cannot be read: not signed")
    exported.write_bytes(b"".join(msgspec.json.encode(line, order="sorted") + b"\n" for line in (first, second)))
    result = run("audit", "verify", str(exported), "-o", "json")
    assert (result.exit_code, "entry 2: audit/2 cannot be read: not signed" in result.stderr) == (1, True)
    assert msgspec.json.decode(result.stdout)["seq"] == 2


def test_a_message_contains_no_terminal_control_sequence(token: str) -> None:
    for words in (("policy", "lint", "\x1b[2J"), ("overrides", "list", "--url", "x\u202e", "--token-file", token)):
        reported = run(*words).stderr.rstrip("\n")
        assert reported.startswith("penstock ")
        assert reported.isprintable()


def test_a_file_other_than_an_audit_log_is_refused(tmp_path: Path) -> None:
    for line in ("{}", "[", '{"before":' + "[" * 100_000):
        (tmp_path / "log").write_text(line)
        result = run("audit", "verify", str(tmp_path / "log"))
        assert (result.exit_code, "line 1 is not an audit entry" in result.stderr) == (2, True)


def test_a_file_that_cannot_be_written_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["policy", "init", str(tmp_path / "file" / "new"), "--region=a=DE", "--model=m"]
    done = subprocess.run([find_script("penstock"), *words], stderr=subprocess.PIPE, text=True, check=False)
    expected = f"penstock: {tmp_path}/file/new: Not a directory; check its path, owner and mode\n"
    assert (done.returncode, done.stderr) == (1, expected)


@pytest.mark.parametrize("command", ["policy schema", "audit verify {empty}"])
def test_a_failed_write_is_a_one_line_error(command: str, tmp_path: Path) -> None:
    """Also if the interpreter flushes the output at its end."""
    (tmp_path / "empty").touch()
    code = "from control_plane.cli.main import main; main()"
    with Path("/dev/full").open("wb") as full:
        words = [sys.executable, "-c", code, *command.format(empty=tmp_path / "empty").split()]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "penstock: [Errno 28] No space left on device\n")


CALL = "status --url http://127.0.0.1:1"


@pytest.mark.parametrize(
    "command",
    [
        f"{CALL} --token-file {{fifo}}",
        f"{CALL} --token-file {{token}} --ca-file {{fifo}}",
        "audit verify {fifo}",
        "residency report {fifo}",
        "certs check {directory}",
        "policy lint {bundle}",
        "policy simulate {smallest} {smallest} --demand {fifo}",
        "policy simulate {smallest} {smallest} --trace {fifo}",
        "policy simulate {smallest} {smallest} --fleet {fifo}",
    ],
)
def test_a_fifo_in_place_of_a_file_is_an_error(command: str, tmp_path: Path, token: str) -> None:
    """A command that read it would wait for a writer."""
    directory, bundle = tmp_path / "identity", tmp_path / "bundle"
    for path in (directory, bundle):
        path.mkdir()
    for fifo in (tmp_path / "fifo", directory / "tls.crt", directory / "tls.key", bundle / "bundle.yaml"):
        os.mkfifo(fifo)
    smallest = POLICIES / "examples" / "smallest"
    named = {"fifo": tmp_path / "fifo", "directory": directory, "bundle": bundle, "smallest": smallest, "token": token}
    result = run(*command.format(**named).split())
    assert result.exit_code in (1, 2)
    assert "FIFO" in result.output + result.stderr or "is not a regular file" in result.output


def test_a_context_file_that_is_a_fifo_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "contexts.yaml")
    monkeypatch.setenv("PENSTOCK_CONTEXTS_FILE", str(tmp_path / "contexts.yaml"))
    with pytest.raises(BadContexts, match="a FIFO, not a regular file"):
        load_contexts()


def test_shells_can_complete() -> None:
    done = CliRunner(env={"_PENSTOCK_COMPLETE": "complete_bash", "COMP_WORDS": "penstock sta", "COMP_CWORD": "1"})
    assert "status" in done.invoke(app, prog_name="penstock").stdout


def test_the_rollout_of_a_version_shows_what_it_waits_for_and_the_mean_score() -> None:
    state = begin(ModelRollout("chat", "v2"), "v1", 0.0, 0.0)
    none = VersionResults(0, 0.0, None, None, None)
    scored = VersionResults(60, 0.0, 0.2, 0.02, 100.0, 12, -0.25)
    status = ModelRolloutStatus(
        model_summary(state), 1, (Condition("12 of 50 pairs of answers scored", False),), scored, none, none
    )
    console = Console(width=120, file=StringIO())
    assert isinstance(console.file, StringIO)
    console.print(model_rollout_view(status))
    shown = console.file.getvalue()
    assert "waits: 12 of 50 pairs of answers scored" in shown
    assert "mean score of 12 pairs of answers: -0.25" in shown
    console.file.truncate(0)
    console.print(model_rollout_view(msgspec.structs.replace(status, new=none)))
    assert "mean score" not in console.file.getvalue()
