import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.health.preemption_notice import notice_s
from regional_agent.endpoints.endpoint import OutlierDetection
from regional_agent.endpoints.endpoint_leases import LeaseFile
from regional_agent.endpoints.endpoint_registration import (
    MAX_BODY_BYTES,
    BadRegistrationToken,
    Registrations,
    load_tokens,
)
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.wait import until

TOKEN = "0123456789abcdef-registration"
BEARER = f"Bearer {TOKEN}".encode()
GOOD = {"url": "http://127.0.0.1:9001", "models": ["m"], "slots": 4}


class Api:
    """The registration API as an engine's sidecar uses it, on a clock that does not advance."""

    def __init__(
        self,
        directory: Path,
        *,
        tokens: str | None = TOKEN,
        keeps: bool = False,
        wall_s: float = 0.0,
        also_in_file: Sequence[str] = (),
    ) -> None:
        self.now = 0.0
        self.directory = directory
        entries = directory / "endpoints.yaml"
        entries.write_text(
            "".join(
                f"- {{name: {name}, url: 'http://127.0.0.1:{9000 + n}', models: [m], slots: 4}}\n"
                for n, name in enumerate(["fixed", *also_in_file])
            )
        )
        self.endpoints = EndpointSet(EndpointSettings(entries), UpstreamPool(), Random(1))
        token_file = None
        if tokens is not None:
            token_file = directory / "tokens"
            token_file.write_text(tokens)
        self.registrations = Registrations(
            self.endpoints,
            token_file,
            lambda: self.now,
            lease_file=LeaseFile(directory) if keeps else None,
            unix_clock=lambda: wall_s + self.now,
        )

    def ask(
        self, method: str, name: str = "", body: Any = None, authorization: bytes | None = BEARER
    ) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        path = f"/v1/endpoints/{name}" if name else "/v1/endpoints"
        reply = self.registrations.handle(method.encode(), path.encode(), authorization, raw)
        return reply.status, json.loads(reply.body)

    def listed(self) -> list[dict[str, Any]]:
        return list(self.ask("GET")[1]["endpoints"])

    def names(self) -> list[str]:
        return [endpoint.name for endpoint in self.endpoints.every() if not endpoint.view.draining]


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return Api(tmp_path)


def test_registers_renews_lists_and_drains(api: Api) -> None:
    assert api.ask("PUT", "gpu-9", {**GOOD, "zone": "b", "ttl_s": 10})[0] == 201
    api.now = 9.0
    assert api.ask("PUT", "gpu-9", {**GOOD, "slots": 8, "ttl_s": 10}) == (
        200,
        {"name": "gpu-9", "ttl_s": 10.0, "renew_within_s": 10.0 / 3},
    )
    api.now = 18.0
    api.registrations.expire()
    status, listed = api.ask("GET")
    shown = {endpoint["name"]: (endpoint["slots"], endpoint["lease_left_s"]) for endpoint in listed["endpoints"]}
    assert (status, shown) == (200, {"fixed": (4, None), "gpu-9": (8, 1.0)})
    assert api.ask("DELETE", "gpu-9") == (202, {"name": "gpu-9", "draining": True, "in_flight": 0})
    assert api.names() == ["fixed"]


def test_a_preemption_notice_drains_any_endpoint_until_it_ends(api: Api) -> None:
    assert api.ask("PUT", "gpu", GOOD)[0] == 201
    for name in ("gpu", "fixed"):
        status, answer = api.ask("POST", f"{name}/preemption", {"for_s": 300})
        assert (status, answer["draining"], answer["for_s"]) == (202, True, 300)
    assert api.names() == []
    assert api.ask("PUT", "gpu", GOOD)[0] == 200, "a heartbeat does not return it to service"
    assert api.names() == []
    assert api.ask("POST", "gpu/preemption", b"")[1]["for_s"] == 600.0


def test_a_replacement_at_another_address_is_not_preempted(api: Api) -> None:
    assert api.ask("PUT", "gpu", GOOD)[0] == 201
    assert api.ask("POST", "gpu/preemption", {})[0] == 202
    assert api.ask("PUT", "gpu", GOOD | {"url": "http://127.0.0.1:9007"})[0] == 200
    assert api.names() == ["fixed", "gpu"]


@pytest.mark.parametrize(
    ("method", "name", "body", "status"),
    [
        ("GET", "fixed", {}, 405),
        ("POST", "absent", {}, 404),
        ("POST", "fixed", [], 400),
        ("POST", "fixed", {"for_s": 0}, 400),
        ("POST", "fixed", {"for_s": True}, 400),
        ("POST", "fixed", {"after_s": 9}, 400),
    ],
)
def test_rejects_a_preemption_notice(api: Api, method: str, name: str, body: Any, status: int) -> None:
    assert api.ask(method, f"{name}/preemption", body)[0] == status
    assert api.names() == ["fixed"]


@pytest.mark.parametrize(("header", "for_s"), [(b"30", 30.0), (b"soon", 600.0), (b"-1", 600.0), (b"9" * 9, 86_400.0)])
def test_a_response_header_of_an_endpoint_drains_it(api: Api, header: bytes, for_s: float) -> None:
    (endpoint,) = api.endpoints.every()
    assert notice_s(header) == for_s
    api.endpoints.answered(endpoint, 200, [(b"content-type", b"text/plain")])
    assert api.names() == ["fixed"]
    api.endpoints.answered(endpoint, 200, [(b"x-preemption-notice", header)])
    assert api.names() == []


async def test_an_endpoint_returns_after_its_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regional_agent.endpoints.endpoint_set.UPDATE_S", 0.01)
    entries = tmp_path / "endpoints.yaml"
    entries.write_text("- {name: gpu, url: 'http://127.0.0.1:9000', models: [m], slots: 4}\n")
    now = 0.0
    endpoints = EndpointSet(
        EndpointSettings(entries, outlier_detection=OutlierDetection(clock=lambda: now, rng=Random(1))),
        UpstreamPool(),
        Random(1),
    )
    endpoints.start()
    try:
        assert endpoints.preempt("gpu", 60.0) is not None
        await until(lambda: list(endpoints.every()) == [])
        now = 61.0
        await until(lambda: [endpoint.view.draining for endpoint in endpoints.every()] == [False])
    finally:
        await endpoints.stop()


def test_expired_lease_drains_its_endpoint(api: Api) -> None:
    api.ask("PUT", "gpu-9", {**GOOD, "ttl_s": 10})
    api.now = 10.0
    api.registrations.expire()
    assert api.names() == ["fixed"]
    assert api.ask("PUT", "gpu-9", GOOD)[0] == 201


@pytest.mark.parametrize(
    "authorization",
    [None, b"", b"Bearer", b"Bearer wrong", b"Basic " + TOKEN.encode(), b"Bearer \xff\xfe", BEARER[:-1]],
)
def test_rejects_requests_without_a_valid_token(api: Api, authorization: bytes | None) -> None:
    for method, name in (("GET", ""), ("PUT", "gpu-9"), ("DELETE", "fixed")):
        status, answer = api.ask(method, name, GOOD, authorization)
        assert (status, answer["error"]["code"]) == (401, "unknown_token")
    assert api.names() == ["fixed"]


def test_rejects_registration_without_a_token_file(tmp_path: Path) -> None:
    api = Api(tmp_path, tokens=None)
    status, answer = api.ask("PUT", "gpu-9", GOOD, b"Bearer ")
    assert (status, answer["error"]["code"]) == (403, "registration_off")
    assert "REGISTRATION_TOKEN_FILE" in answer["error"]["message"]


def test_accepts_old_and_new_token_during_a_rotation(tmp_path: Path) -> None:
    api = Api(tmp_path, tokens=f"{TOKEN}\n\nfedcba9876543210-next\n")
    assert api.ask("GET")[0] == api.ask("GET", authorization=b"bearer fedcba9876543210-next")[0] == 200


def test_reloads_tokens_and_keeps_them_if_the_file_is_invalid(tmp_path: Path) -> None:
    api = Api(tmp_path)
    tokens = api.registrations.token_file
    assert tokens is not None
    (tmp_path / "tokens").write_text("fedcba9876543210-next\n")
    assert tokens.reload_if_changed()
    assert api.ask("GET", authorization=b"Bearer fedcba9876543210-next")[0] == 200
    assert api.ask("GET")[0] == 401
    for damage in ((tmp_path / "tokens").unlink, (tmp_path / "tokens").touch):
        damage()
        assert not tokens.reload_if_changed()
        assert "tokens" in tokens.problem
        assert api.ask("GET", authorization=b"Bearer fedcba9876543210-next")[0] == 200


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"slots": 0}, "slots", "whole number from 1"),
        ({"slots": True}, "slots", "whole number"),
        ({"slots": 1.5}, "slots", "whole number"),
        ({"url": "gpu:80"}, "url", "http://host:port"),
        ({"url": None}, "url", "not a text"),
        ({"url": "http://169.254.169.254:80"}, "url", "link-local"),
        ({"url": "http://[fe80::1]:80"}, "url", "link-local"),
        ({"url": "http://[::ffff:169.254.169.254]:80"}, "url", "link-local"),
        ({"url": "http://[64:ff9b::a9fe:a9fe]:80"}, "url", "metadata"),
        ({"url": "http://168.63.129.16:80"}, "url", "metadata"),
        ({"url": "http://255.255.255.255:80"}, "url", "broadcast"),
        ({"url": "http://0.0.0.0:80"}, "url", "reserved"),
        ({"url": "http://224.0.0.1:80"}, "url", "reserved"),
        ({"url": "http://2852039166:80"}, "url", "http://host:port"),
        ({"url": "http://0xa9fea9fe:80"}, "url", "http://host:port"),
        ({"url": "http://169.254.43518:80"}, "url", "http://host:port"),
        ({"url": "http://127.1:80"}, "url", "http://host:port"),
        ({"models": []}, "models", "list of 1-64"),
        ({"models": [["m"]]}, "models", "not a text"),
        ({"zone": "../x"}, "zone", "not a name"),
        ({"engine": "x"}, "engine", "use one of auto, vllm"),
        ({"ttl_s": 1}, "ttl_s", "from 5 to 3600"),
        ({"ttl_s": 1e9}, "ttl_s", "from 5 to 3600"),
        ({"ttl_s": "10"}, "ttl_s", "write seconds"),
        ({"name": "other"}, "name", "leave it out"),
        ({"dns": "x:1"}, "dns", "no such field; use one of name, url"),
    ],
)
def test_names_an_invalid_field_and_changes_nothing(api: Api, change: dict[str, Any], param: str, message: str) -> None:
    status, answer = api.ask("PUT", "gpu-9", {**GOOD, **change})
    error = answer["error"]
    assert (status, error["param"], error["code"], error["type"]) == (
        400,
        param,
        "bad_endpoint",
        "invalid_request_error",
    )
    assert message in error["message"]
    assert api.names() == ["fixed"]


@pytest.mark.parametrize("missing", ["url", "models", "slots"])
def test_names_a_missing_field(api: Api, missing: str) -> None:
    status, answer = api.ask("PUT", "gpu-9", {field: GOOD[field] for field in GOOD if field != missing})
    assert (status, answer["error"]["param"]) == (400, missing)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 60_000, b" " * (MAX_BODY_BYTES + 1), b'{"url": NaN}']
)
def test_rejects_an_invalid_body(api: Api, body: bytes) -> None:
    assert api.ask("PUT", "gpu-9", body)[0] == 400


@pytest.mark.parametrize("name", ["a/b", "..", "%41", "a b", "x" * 64])
def test_rejects_an_invalid_name_in_the_path(api: Api, name: str) -> None:
    status, answer = api.ask("PUT", name, GOOD)
    assert (status, answer["error"]["param"]) == (400, "name")


def test_rejects_changes_to_endpoints_of_the_file(api: Api) -> None:
    assert api.ask("PUT", "fixed", GOOD)[0] == 409
    status, answer = api.ask("PUT", "gpu-9", {**GOOD, "url": "http://127.0.0.1:9000"})
    assert (status, answer["error"]["param"]) == (409, "url")
    status, answer = api.ask("DELETE", "fixed")
    assert (status, "remove it there" in answer["error"]["message"]) == (409, True)
    assert api.ask("DELETE", "nobody")[0] == 404
    assert api.ask("PATCH", "fixed")[0] == api.ask("POST")[0] == 405


def test_file_takes_precedence_over_an_earlier_registration(api: Api) -> None:
    assert api.ask("PUT", "gpu-9", GOOD)[0] == 201
    with (api.directory / "endpoints.yaml").open("a") as file:
        file.write("- {name: gpu-9, url: 'http://127.0.0.1:9009', models: [m], slots: 4}\n")
    asyncio.run(api.endpoints.sources.reload_file())
    status, answer = api.ask("PUT", "gpu-9", GOOD)
    assert (status, answer["error"]["param"]) == (409, "name")
    status, answer = api.ask("DELETE", "gpu-9")
    assert (status, "remove it there" in answer["error"]["message"]) == (409, True)
    assert api.names() == ["fixed", "gpu-9"]


async def test_restart_restores_unexpired_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No tick occurs during the test: a new lease is written at once.
    monkeypatch.setattr("regional_agent.endpoints.endpoint_registration.EXPIRE_S", 3600.0)
    before = Api(tmp_path, keeps=True)
    keeping = asyncio.create_task(before.registrations.keep_expiring())
    before.ask("PUT", "gpu-8", {**GOOD, "url": "http://127.0.0.1:9008", "slots": 8, "engine": "vllm", "ttl_s": 60})
    before.ask("PUT", "gpu-9", {**GOOD, "url": "http://127.0.0.1:9009", "ttl_s": 10})
    before.ask("PUT", "fixed-2", {**GOOD, "url": "http://127.0.0.1:9002", "ttl_s": 60})
    await until(lambda: (tmp_path / "registered").exists() and b"fixed-2" in (tmp_path / "registered").read_bytes())
    keeping.cancel()
    for restarted_after_s, names in ((0.0, ["fixed", "gpu-8", "gpu-9"]), (20.0, ["fixed", "gpu-8"]), (99.0, ["fixed"])):
        after = Api(tmp_path, keeps=True, wall_s=restarted_after_s, also_in_file=["fixed-2"])
        assert sorted(after.names()) == sorted([*names, "fixed-2"])
        shown = {
            endpoint["name"]: (endpoint["slots"], endpoint["engine"], endpoint["lease_left_s"])
            for endpoint in after.listed()
        }
        assert shown.get("gpu-8") == ((8, "vllm", 60.0 - restarted_after_s) if "gpu-8" in names else None)
        assert shown["fixed-2"][2] is None
    after = Api(tmp_path, keeps=True, wall_s=-1e6)
    assert {endpoint["lease_left_s"] for endpoint in after.listed()} == {None, 60.0, 10.0}
    assert Api(tmp_path, keeps=True, tokens=None).names() == ["fixed"]


async def test_extends_leases_by_the_time_the_process_was_suspended(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regional_agent.endpoints.endpoint_registration.EXPIRE_S", 0.01)
    looking = asyncio.create_task(api.registrations.keep_expiring())
    api.ask("PUT", "gpu-9", {**GOOD, "ttl_s": 10})
    await asyncio.sleep(0)  # the task reads the time
    api.now += 60.0
    await until(lambda: api.listed()[-1]["lease_left_s"] > 0.0 or len(api.names()) < 2)
    assert api.names() == ["fixed", "gpu-9"]
    looking.cancel()
    api.now += 11.0
    api.registrations.expire()
    assert api.names() == ["fixed"]


def test_limits_the_number_of_registered_endpoints(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regional_agent.endpoints.endpoint_registration.MAX_REGISTERED", 2)
    for n in (1, 2):
        assert api.ask("PUT", f"gpu-{n}", {**GOOD, "url": f"http://127.0.0.1:{n}"})[0] == 201
    status, answer = api.ask("PUT", "gpu-3", {**GOOD, "url": "http://127.0.0.1:3"})
    assert (status, answer["error"]["code"]) == (429, "too_many")
    assert api.ask("PUT", "gpu-2", {**GOOD, "url": "http://127.0.0.1:2"})[0] == 200


@pytest.mark.parametrize("content", [None, "", "short\n", f"{TOKEN}\nshort\n", "x" * 5000])
def test_names_an_invalid_token_file_without_its_content(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "tokens"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadRegistrationToken, match="openssl rand") as refused:
        load_tokens(path)
    assert TOKEN not in str(refused.value)
