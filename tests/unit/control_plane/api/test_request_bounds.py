"""Bounds of requests: nothing of a body is read before the caller is authorised, and bodies and errors are bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import structlog
from fastapi import APIRouter, FastAPI
from starlette.types import Message
from structlog.testing import LogCapture

from adapters.access.api_keys import ApiKeys
from adapters.access.callers import Role
from control_plane import daemon
from control_plane.api.app import UnguardedRoute
from control_plane.api.body_decoding import BadBody, parse_json
from control_plane.api.json_bodies import INLINE_BYTES, MAX_BODY, MAX_BODY_BYTES
from control_plane.api.openapi import REQUIRED_ROLE
from control_plane.api.request_limits import MAX_QUERY_BYTES
from control_plane.api.responses import MAX_ERRORS
from control_plane.api.routes.rollouts.rollouts_routes import ActionRequest
from control_plane.api.serving.client_connections import MAX_HEAD_BYTES
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import Viewer
from control_plane.daemon import ControlPlane
from tests.support.api_app import OPERATOR, TOKEN, client_of, served
from tests.support.loop_turns import measured_turns

MAX_ANSWER_BYTES = 16 * 1024
MAX_TURN_S = 0.05


def unknown_names(number: int) -> bytes:
    """An object with unknown names, of at most 11 bytes for each."""
    return b"{" + b",".join(b'"%d":1' % name for name in range(number)) + b"}"


SHAPES = {
    "unknown names": lambda size: unknown_names(size // 11),
    "unknown names of clients": lambda size: (
        b'{"clients":[' + b",".join([unknown_names(45)] * min(500, size // 500)) + b"]}"
    ),
    "many clients": lambda size: b'{"clients":[' + b",".join([unknown_names(1)] * (size // 11)) + b"]}",
    "numbers": lambda size: b'{"clients":[' + b",".join([b"1"] * (size // 2 - 20)) + b"]}",
    "one name": lambda size: b'{"' + b"n" * (size - 20) + b'":1}',
    "depth": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "digits": lambda size: b"1" * size,
    "no JSON": lambda size: b"\xff" * size,
}
"""Hostile bodies of at most a size."""

Operation = tuple[str, str, dict[str, Any]]


@pytest.fixture
def app(control_plane: ControlPlane, tmp_path: Path) -> FastAPI:
    keys = [
        {"name": role.value, "sha256": sha256(role.value.encode()).hexdigest(), "role": role.value} for role in Role
    ]
    (tmp_path / "keys.yaml").write_bytes(msgspec.json.encode(keys))
    return served(control_plane, Access(TOKEN, ApiKeys(tmp_path / "keys.yaml")))


@pytest.fixture
def log() -> Iterator[LogCapture]:
    """Entries of the log."""
    capture = LogCapture()
    before = structlog.get_config()["processors"]
    structlog.configure(processors=[capture])
    yield capture
    structlog.configure(processors=before)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client


def operations(app: FastAPI) -> list[Operation]:
    """Method, path with values, and description of each guarded operation."""
    values = {"{number}": "1", "{generation}": "1", "{digest}": "0" * 64}
    found = []
    for template, methods in app.openapi()["paths"].items():
        path = template
        for name, value in values.items():
            path = path.replace(name, value)
        found += [
            (method.upper(), path, described) for method, described in methods.items() if REQUIRED_ROLE in described
        ]
    return found


def bearer(role: Role) -> dict[str, str]:
    return {"authorization": f"Bearer {role.value}", "content-type": "application/json"}


async def test_no_byte_of_a_body_is_read_for_a_caller_without_the_role(app: FastAPI, http: httpx.AsyncClient) -> None:
    read = 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(60):
            read += 1
            yield SHAPES["unknown names"](64 * 1024)

    for method, path, found in operations(app):
        for role in (None, *Role):
            if role is not None and role.covers(Role(found[REQUIRED_ROLE])):
                continue
            answer = await http.request(method, path, content=body(), headers=bearer(role) if role is not None else {})
            assert answer.status_code == (401 if role is None else 403), f"{method} {path} by {role}"
            assert len(answer.content) < 1024
            assert read == 0, f"{method} {path} by {role} read the body"


async def test_a_body_above_the_limit_of_its_route_is_refused(app: FastAPI, http: httpx.AsyncClient) -> None:
    bodies = 0
    for method, path, found in operations(app):
        if "requestBody" not in found:
            continue
        bodies += 1
        limit = found[MAX_BODY]
        kilobytes = path not in ("/v1/what-if", "/v1/policies/validate")
        assert limit <= (256 * 1024 if kilobytes else 4 * 1024 * 1024)
        answer = await http.request(method, path, content=b" " * (limit + 1), headers=bearer(Role.ADMIN))
        assert (answer.status_code, answer.json()["detail"]) == (
            413,
            f"the body is larger than {limit} bytes, the limit of this route",
        )
    assert bodies > 10


async def test_no_body_at_its_limit_stalls_the_loop_or_has_a_long_answer(
    app: FastAPI, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [operation for operation in operations(app) if "requestBody" in operation[2]]
    async with measured_turns(monkeypatch) as turns:
        for method, path, found in bodies:
            # The first request of a route includes work that is done once.
            await http.request(method, path, content=b'{"n":1}', headers=bearer(Role.ADMIN))
            for shape, of_size in SHAPES.items():
                body = of_size(found[MAX_BODY])
                assert INLINE_BYTES < len(body) <= found[MAX_BODY]
                await turns.reset()
                answer = await http.request(method, path, content=body, headers=bearer(Role.ADMIN))
                longest_s = await turns.longest()
                assert 400 <= answer.status_code < 500 or path == "/v1/policies/validate", answer.text
                assert len(answer.content) < MAX_ANSWER_BYTES, f"{path}: {shape}"
                assert len(answer.json().get("errors", ())) <= MAX_ERRORS
                assert longest_s < MAX_TURN_S, f"{method} {path}: {shape}: {longest_s * 1e3:.0f} ms"


async def test_no_head_at_its_limit_stalls_the_loop(
    app: FastAPI, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = MAX_HEAD_BYTES - 2048
    heads = [
        {name: value}
        for name in (
            *("accept", "authorization", "content-type", "cookie", "forwarded", "host", "if-match"),
            *("if-none-match", "last-event-id", "x-forwarded-for", "x-penstock-caller", "x-penstock-certificate"),
        )
        for value in (
            '"' + "\\" * (size - 2) + '"',
            "a=" + '"' + "\\0" * (size // 2 - 2),
            "a;" * (size // 2),
            '"a",' * (size // 4),
            "1.1.1.1," * (size // 8),
            "Bearer " + "." * (size - 7),
            "Bearer " + ("ey" * 8000) + ".a.b",
            "A" * size,
        )
    ]
    page = {"x-penstock-ui": "1"}
    paths = ["/livez", "/ui/", "/v1/status", "/v1/overrides/" + "x" * 200, "/none/" + "/x" * (size // 2)]
    async with measured_turns(monkeypatch) as turns:
        for path in paths:
            for number, head in enumerate([{}, *heads]):
                await turns.reset()
                answer = await http.get(path, headers={**page, **head})
                longest_s = await turns.longest()
                assert answer.status_code < 500
                # The first request of a route includes work that is done once.
                assert longest_s < MAX_TURN_S or number == 0, f"{path}: {str(head)[:60]}: {longest_s * 1e3:.0f} ms"
    methods = await http.request("PATCH", "/v1/overrides/" + "x" * size, headers=OPERATOR)
    assert methods.status_code == 405


async def test_queries_are_bounded(http: httpx.AsyncClient) -> None:
    assert (await http.get("/livez?" + "a" * (MAX_QUERY_BYTES + 1))).status_code == 414
    many = await http.get("/v1/regions?" + "a=&" * 101, headers=OPERATOR)
    assert (many.status_code, many.json()["detail"]) == (422, "query: has more than 100 parameters")
    unknown = await http.get("/v1/regions?" + "".join(f"a{n}=&" for n in range(90)), headers=OPERATOR)
    assert len(unknown.json()["errors"]) == MAX_ERRORS


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b'{"reason":"x","reason":"y"}', 400, "body: 'reason' is repeated in one object; give it once"),
        (b'{"\\ud800":1}', 422, "body: Input should be a valid string, unable to parse raw data as a unicode string"),
        (b"1" * 5000, 422, "body: is not JSON: a number has too many digits"),
        (b'"\xff"', 422, "body: is not JSON: it is not UTF-8"),
        (unknown_names(129), 422, "body: an object has 129 names; at most 128 are permitted"),
        (
            b'{"reason":"x"' + b"".join(b',"n%d":1' % number for number in range(30)) + b"}",
            422,
            "body.n0: Extra inputs are not permitted; body.n1: Extra inputs are not permitted; "
            "body.n2: Extra inputs are not permitted; and 27 more",
        ),
    ],
)
async def test_a_malformed_body_is_a_problem(http: httpx.AsyncClient, body: bytes, status: int, detail: str) -> None:
    answer = await http.post("/v1/rollouts/current/halt", content=body, headers=bearer(Role.ADMIN))
    assert (answer.status_code, answer.json()["detail"]) == (status, detail)


def test_a_body_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(BadBody, match="is nested too deeply"):
        parse_json(b"[" * 200_000)


async def test_a_client_that_leaves_during_its_upload_is_no_error(app: FastAPI, log: LogCapture) -> None:
    uploads = [(method, path) for method, path, described in operations(app) if "requestBody" in described]
    for method, path in [*uploads, ("POST", "/v1/reports"), ("POST", "/v1/policies/webhook")]:
        received = iter(
            [{"type": "http.request", "body": b'{"reason"', "more_body": True}, {"type": "http.disconnect"}]
        )

        async def receive(received: Iterator[Message] = received) -> Message:
            return next(received)

        async def send(message: Message) -> None:
            assert message.get("status", 0) < 500

        headers = [(name.encode(), value.encode()) for name, value in bearer(Role.ADMIN).items()]
        head = {"type": "http", "method": method, "path": path, "headers": headers, "query_string": b""}
        await app({**head, "scheme": "http", "client": ("127.0.0.1", 1), "server": ("north", 80)}, receive, send)
    assert [entry for entry in log.entries if entry["log_level"] in ("warning", "error", "critical")] == []


async def test_a_body_parameter_of_fastapi_stops_the_start(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = APIRouter()

    @router.post("/v1/things")
    async def things(caller: Viewer, body: ActionRequest) -> None:
        """FastAPI would read the body before it calls the dependencies."""

    monkeypatch.setattr(daemon.status_routes, "routes", lambda *_: router)
    with pytest.raises(UnguardedRoute, match="use JsonBody"):
        control_plane.create_api(Access(TOKEN))


def test_the_default_limit_is_kilobytes() -> None:
    assert MAX_BODY_BYTES <= 16 * 1024
