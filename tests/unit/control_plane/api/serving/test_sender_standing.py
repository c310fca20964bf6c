"""The sender of a request is known by the head, and a flood of strangers does not delay authenticated requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import pytest
from starlette.types import Message, Receive, Scope, Send

from adapters.access.callers import Caller, Role
from control_plane.api.serving.open_connections import STATE_KEY, OpenConnection, OpenConnections
from control_plane.api.serving.sender_standing import SenderStanding
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import ADMIN_TOKEN_CALLER, Access
from control_plane.leadership import forwarded_caller
from control_plane.leadership.forwarded_caller import ForwardedCallers, request_digest, seal_caller
from control_plane.metrics import ControlPlaneMetrics
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.report_intake import ReportIntake, ReportReceipt
from penstock.admission.connection_limits import Standing, StandingLimits
from penstock.wire import identity
from penstock.wire.identity import encode_certificate
from tests.support.identities import control_plane_keyring, introduce
from tests.support.reports import packed, report

TOKEN = AdminToken("0123456789abcdef")
OPERATOR = {"authorization": TOKEN.header()}
BODY, REPORT = packed(report("eu-de"))


class Server:
    """The middleware before an application that records the requests and answers none."""

    def __init__(self, per_caller: int = 100) -> None:
        keyring = control_plane_keyring()
        intake = ReportIntake(
            keyring,
            FleetSnapshot(),
            policy=lambda: None,
            leading=lambda: ReportReceipt(True, None),
            metrics=ControlPlaneMetrics(),
            clock=time.time,
        )
        limits = {standing: StandingLimits(100, per_caller) for standing in Standing}
        self.connections = OpenConnections(limits, time.monotonic)
        self.handled: list[str] = []
        self.sent: list[Message] = []
        self._app = SenderStanding(self._handle, Access(TOKEN), ForwardedCallers(keyring, time.time), intake)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.handled.append(scope["path"])

    async def send(
        self,
        path: str,
        headers: Mapping[str, str],
        address: str = "192.0.2.1",
        connection: OpenConnection | None = None,
    ) -> OpenConnection:
        connection = connection or self.connections.open(address, lambda: None)
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": (address, 1),
            "state": {STATE_KEY: connection},
        }
        await self._app(scope, self._no_body, self._record)
        return connection

    async def _no_body(self) -> Message:
        raise AssertionError("the body was read")

    async def _record(self, message: Message) -> None:
        self.sent.append(message)

    def counts(self) -> list[int]:
        return [self.connections.limited.count(standing) for standing in Standing]


@pytest.fixture
def server() -> Server:
    return Server()


def forwarded() -> dict[str, str]:
    follower = control_plane_keyring("cp-2")
    peer_keys = introduce(follower, control_plane_keyring())
    caller = Caller("olga", Role.VIEWER)
    token = seal_caller(caller, "192.0.2.1", request_digest("POST", "/v1/explain", b""), peer_keys, time.time())
    return {
        forwarded_caller.HEADER: token,
        identity.HEADER: encode_certificate(follower.identity.peer.certificate),
    }


@pytest.mark.parametrize(
    ("path", "headers", "counts"),
    [
        ("/v1/reports", REPORT, [0, 0, 1]),
        ("/v1/explain", OPERATOR, [0, 1, 0]),
        ("/v1/explain", {}, [1, 0, 0]),
        ("/v1/explain", {"authorization": "Bearer wrong"}, [1, 0, 0]),
        ("/v1/explain", {forwarded_caller.HEADER: "a.b.c"}, [1, 0, 0]),
        ("/v1/explain", REPORT, [1, 0, 0]),
        ("/v1/reports", {}, [1, 0, 0]),
        ("/v1/reports", OPERATOR, [1, 0, 0]),
        ("/v1/reports", {**REPORT, "x-penstock-signature": "0" * 64}, [1, 0, 0]),
        ("/v1/reports", packed(report("eu-de"), "cp-2")[1], [1, 0, 0]),
        ("/v1/reports", packed(report("eu-de"), fleet=1)[1], [1, 0, 0]),
    ],
    ids=range(11),
)
async def test_the_head_shows_the_sender(server: Server, path: str, headers: dict[str, str], counts: list[int]) -> None:
    await server.send(path, headers)
    assert (server.counts(), server.handled) == (counts, [path])


async def test_a_forwarded_request_is_of_the_control_plane_that_forwarded_it(server: Server) -> None:
    await server.send("/v1/explain", forwarded())
    assert server.counts() == [0, 0, 1]
    await server.send("/v1/explain", forwarded() | {forwarded_caller.HEADER: "a.b.c"})
    assert server.counts() == [1, 0, 1]


async def test_authenticated_requests_do_not_wait_for_strangers(server: Server) -> None:
    strangers = [asyncio.create_task(server.send(f"/{number}", {})) for number in range(50)]
    while not server.handled:  # noqa: ASYNC110 (counts turns of the event loop)
        await asyncio.sleep(0)
    await server.send("/v1/reports", REPORT)
    await asyncio.gather(*strangers)
    assert server.handled.index("/v1/reports") <= 2
    assert [path for path in server.handled if path != "/v1/reports"] == [f"/{number}" for number in range(50)]


async def test_the_senders_of_requests_take_turns(server: Server) -> None:
    operators = [asyncio.create_task(server.send(f"/{number}", OPERATOR)) for number in range(50)]
    strangers = [asyncio.create_task(server.send("/many", {}, address="192.0.2.2")) for _ in range(50)]
    while not server.handled:  # noqa: ASYNC110 (counts turns of the event loop)
        await asyncio.sleep(0)
    await server.send("/one", {}, address="192.0.2.3")
    await asyncio.gather(*operators, *strangers)
    assert server.handled.index("/one") <= 8


async def test_a_request_of_a_closed_connection_is_not_handled(server: Server) -> None:
    connection = server.connections.open("192.0.2.1", lambda: None)
    connection.close()
    await server.send("/v1/explain", {}, connection=connection)
    assert server.handled == []


async def test_a_caller_with_too_many_connections_is_refused() -> None:
    server = Server(per_caller=1)
    first = await server.send("/first", OPERATOR)
    first.wait(for_client=False)
    await server.send("/second", OPERATOR)
    assert server.handled == ["/first"]
    assert server.sent[0]["status"] == 429
    assert ADMIN_TOKEN_CALLER.name.encode() in server.sent[1]["body"]
