"""A repeated change receives the stored response, for the same caller and request only; the store is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import httpx
import pytest
from fastapi import Body, FastAPI, Response
from fastapi.responses import StreamingResponse

from adapters.access.api_keys import ApiKeys
from adapters.access.login_failures import LoginFailures
from adapters.store import keys
from adapters.store.memory_store import MemoryStore
from control_plane.api import idempotency_store, request_limits, responses
from control_plane.api.authorisation import Authorisation
from control_plane.api.idempotency import Idempotency
from control_plane.api.idempotency_store import IdempotencyStore
from control_plane.api.json_bodies import MAX_BODY_BYTES
from control_plane.api.request_limits import RequestLimits
from control_plane.api.responses import Problem, json_response
from control_plane.api.route_rules import RouteRules
from control_plane.auth.authentication import Access
from control_plane.auth.required_roles import Operator
from tests.support.stores import SetClock
from tests.support.wait import until
from tests.unit.control_plane.auth.test_api_access import TOKEN, keys_file

DO, RULE = {"authorization": "Bearer do"}, {"authorization": "Bearer rule"}
SEE = {"authorization": "Bearer see"}


class Changes:
    """Counts the changes, and blocks them with a gate."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()


@pytest.fixture
def changes() -> Changes:
    return Changes()


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture
def store(clock: SetClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def api_keys(tmp_path: Path) -> ApiKeys:
    return ApiKeys(keys_file(tmp_path))


@pytest.fixture
async def http(
    changes: Changes, clock: SetClock, store: MemoryStore, api_keys: ApiKeys
) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    access = app.state.access = Access(TOKEN, api_keys)
    access.failures = LoginFailures(clock)
    responses.install_error_handlers(app)

    @app.post("/things", status_code=201)
    async def make(caller: Operator, name: Annotated[str, Body(embed=True)]) -> Response:
        await changes.gate.wait()
        if name == "bad":
            raise Problem(409, "no")
        if name == "broken":
            raise ZeroDivisionError
        changes.done.append(name)
        return json_response({"made": name, "number": len(changes.done)}, 201, {"etag": f'"{len(changes.done)}"'})

    @app.post("/v1/explain")
    async def explain(caller: Operator) -> Response:
        changes.done.append("explained")
        return json_response(len(changes.done))

    @app.post("/session")
    async def session(caller: Operator) -> Response:
        changes.done.append("session")
        return Response(status_code=204, headers={"set-cookie": "session=secret"})

    @app.post("/large")
    async def large(caller: Operator) -> Response:
        changes.done.append("large")

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * (idempotency_store.MAX_RESPONSE_BYTES // 2)

        return StreamingResponse(parts())

    rules = RouteRules(app.routes)
    app.add_middleware(Idempotency, store=IdempotencyStore(store, "north", clock), rules=rules)
    app.add_middleware(Authorisation, access=access, rules=rules)
    app.add_middleware(RequestLimits, rules=rules)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://north") as client:
        yield client


async def make(
    http: httpx.AsyncClient, name: str = "a", key: str | None = "k", who: dict[str, str] = DO, **headers: str
) -> httpx.Response:
    with_key = {} if key is None else {"idempotency-key": key}
    return await http.post("/things", json={"name": name}, headers={**who, **with_key, **headers})


async def test_a_repeated_change_gets_the_stored_response(http: httpx.AsyncClient, changes: Changes) -> None:
    first, second = await make(http), await make(http)
    assert (first.status_code, second.status_code) == (201, 201)
    assert (first.content, first.headers["etag"]) == (second.content, second.headers["etag"])
    assert ("idempotency-replayed" in first.headers, second.headers["idempotency-replayed"]) == (False, "true")
    assert changes.done == ["a"]


async def test_nothing_is_written_for_a_caller_without_the_role(http: httpx.AsyncClient, store: MemoryStore) -> None:
    before = (await store.list("")).revision
    assert (await make(http, who=SEE)).status_code == 403
    assert (await http.post("/nothing", headers={**DO, "idempotency-key": "k"})).status_code == 404
    assert (await http.delete("/things", headers={**DO, "idempotency-key": "k"})).status_code == 405
    assert (await store.list("")).revision == before
    await make(http)
    assert (await store.list("")).revision > before


async def test_without_the_key_or_with_another_key_the_change_is_repeated(
    http: httpx.AsyncClient, changes: Changes
) -> None:
    for key in (None, None, "k", "l"):
        assert (await make(http, key=key)).status_code == 201
    assert len(changes.done) == 4


async def test_a_key_cannot_be_used_for_another_request(http: httpx.AsyncClient, changes: Changes) -> None:
    await make(http)
    for refused in (await make(http, "b"), await make(http, **{"if-match": '"1"'})):
        assert refused.status_code == 422
        assert "another request" in refused.json()["detail"]
    assert changes.done == ["a"]


async def test_a_key_cannot_be_used_for_another_operation(http: httpx.AsyncClient, changes: Changes) -> None:
    await make(http)
    other = await http.post("/large", headers={**DO, "idempotency-key": "k"})
    assert (other.status_code, changes.done) == (200, ["a", "large"])
    assert (await http.put("/things", headers={**DO, "idempotency-key": "k"})).status_code == 405


async def test_a_response_of_a_read_is_not_stored(
    http: httpx.AsyncClient, changes: Changes, store: MemoryStore
) -> None:
    for _ in range(2):
        assert (await http.post("/v1/explain", headers={**DO, "idempotency-key": "k"})).status_code == 200
    assert changes.done == ["explained", "explained"]
    assert (await store.list(keys.IDEMPOTENCY_RECORDS)).items == ()


async def test_a_response_with_a_cookie_is_not_stored(
    http: httpx.AsyncClient, changes: Changes, store: MemoryStore
) -> None:
    for _ in range(2):
        response = await http.post("/session", headers={**DO, "idempotency-key": "k"})
        assert response.headers["set-cookie"] == "session=secret"
    assert changes.done == ["session", "session"]
    assert (await store.list(keys.IDEMPOTENCY_RECORDS)).items == ()


async def test_a_blocked_address_cannot_test_credentials(http: httpx.AsyncClient) -> None:
    guess = {"authorization": "Bearer a guess"}
    while (refused := await make(http, who=guess)).status_code != 429:
        assert refused.status_code == 401
    for key in ("k", "k" * 300, ""):
        right, wrong = await make(http, key=key), await make(http, key=key, who=guess)
        assert (right.status_code, right.content) == (wrong.status_code, wrong.content) == (429, wrong.content)


async def test_a_repetition_during_the_first_request_is_refused(http: httpx.AsyncClient, changes: Changes) -> None:
    changes.gate.clear()
    first = asyncio.create_task(make(http))
    refused = None
    for _ in range(200):
        await asyncio.sleep(0)
    refused = await make(http)
    assert (refused.status_code, refused.headers["retry-after"]) == (409, "1")
    changes.gate.set()
    assert (await first).status_code == 201
    assert (await make(http)).json() == (await first).json()
    assert changes.done == ["a"]


@pytest.mark.parametrize(("name", "status"), [("bad", 409), ("broken", 500)])
async def test_a_failed_change_can_be_repeated(http: httpx.AsyncClient, name: str, status: int) -> None:
    for _ in range(2):
        failed = await make(http, name)
        assert failed.status_code == status
        assert "idempotency-replayed" not in failed.headers
    assert (await make(http, "good")).status_code == 201


async def test_a_stored_response_is_for_its_caller_only(
    http: httpx.AsyncClient, changes: Changes, api_keys: ApiKeys, tmp_path: Path
) -> None:
    await make(http)
    assert (await make(http, who=RULE)).json() == {"made": "a", "number": 2}
    assert (await make(http, who={"authorization": "Bearer nobody"})).status_code == 401
    assert (await make(http, who={})).status_code == 401
    # The caller has lost its role: a viewer must not get the response that an operator got.
    path = tmp_path / "keys.yaml"
    path.write_text(path.read_text().replace("operator\n- name: rule", "viewer\n- name: rule"))
    assert api_keys.files.reload_if_changed()
    assert (await make(http)).status_code == 403


async def test_stored_responses_expire(http: httpx.AsyncClient, changes: Changes, clock: SetClock) -> None:
    await make(http)
    clock.now += idempotency_store.RETENTION_S + 1
    await make(http)
    assert len(changes.done) == 2


async def test_a_large_response_is_not_stored(http: httpx.AsyncClient, changes: Changes) -> None:
    for _ in range(2):
        response = await http.post("/large", headers={**DO, "idempotency-key": "k"})
        assert len(response.content) > idempotency_store.MAX_RESPONSE_BYTES
    assert changes.done == ["large", "large"]


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_the_length_of_a_key_is_limited(http: httpx.AsyncClient, key: str) -> None:
    assert (await make(http, key=key)).status_code == 400


async def test_the_number_of_stored_responses_is_bounded(
    http: httpx.AsyncClient, changes: Changes, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency_store, "MAX_STORED", 5)
    for number in range(8):
        await make(http, key=str(number))
    assert len((await store.list(keys.IDEMPOTENCY_RECORDS)).items) == 5
    assert "idempotency-replayed" in (await make(http, key="3")).headers
    assert "idempotency-replayed" not in (await make(http, key="2")).headers


async def test_without_the_store_a_request_is_refused_before_any_effect(
    http: httpx.AsyncClient, changes: Changes, store: MemoryStore
) -> None:
    await store.close()
    away = await make(http)
    assert (away.status_code, "nothing was changed" in away.json()["detail"]) == (503, True)
    assert (await make(http, key=None)).status_code == 201
    assert changes.done == ["a"]


async def test_only_the_digest_of_a_request_is_stored(http: httpx.AsyncClient, store: MemoryStore) -> None:
    await make(http, "secret", "the key")
    (item,) = (await store.list(keys.IDEMPOTENCY_RECORDS)).items
    for reported in (b"the key", b"Bearer"):
        assert reported not in item.key.encode() + item.value
    assert item.lease_id != 0


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_body_that_is_too_large_or_too_slow_is_refused(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, changes: Changes, key: str | None
) -> None:
    assert (await make(http, "x" * MAX_BODY_BYTES, key)).status_code == 413
    monkeypatch.setattr(request_limits, "BODY_TIMEOUT_S", 0.05)

    async def dawdle() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    headers = {**DO, "content-type": "application/json"} | ({"idempotency-key": key} if key else {})
    slow = await http.post("/things", content=dawdle(), headers=headers)
    assert (slow.status_code, slow.headers["content-type"]) == (408, responses.PROBLEM_JSON)
    assert changes.done == []
    monkeypatch.undo()
    await until(lambda: True)
    assert (await make(http, key=key)).status_code == 201
