"""Engines behind an API key, a base path, mutual TLS and other model names: real sockets on every side."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from adapters.tls_contexts import ServerTls
from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.outlier_ejection import EjectionState
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_credentials import EndpointCredentials
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_status import endpoint_status
from regional_agent.http.limits import Limits
from regional_agent.upstream.address import Address
from tests.support.agents import Agent, running_agent
from tests.support.certificates import has_openssl_3, make_authority, make_certificate
from tests.support.chats import BODY, JSON_ANSWER, ask
from tests.support.engines import running_engines
from tests.support.planet import MODEL
from tests.support.small_http import Headers, SmallHttp
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.uploads import LIMITS
from tests.support.wait import PATIENCE_S, until

SECRET, NEXT_SECRET = "sk-0123456789-first", "sk-0123456789-second"
CHAT = "/v1/chat/completions"
METRICS = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"


class KeyedEngine(SmallHttp):
    """An engine like `vllm serve --api-key`: only its health and its metrics are open."""

    def __init__(self, *models: str, secret: str = SECRET, base_path: str = "", header: str = "authorization") -> None:
        self.models = models
        self.secret = secret
        self.base_path = base_path
        self.header = header.encode()
        self.received: list[tuple[str, dict[bytes, bytes], bytes]] = []
        """Every request: its target, headers and body."""
        self.repeated = False
        """Whether a request contained the header of the credential twice."""
        super().__init__(self._page)

    def requests_to(self, path: str) -> list[tuple[dict[bytes, bytes], bytes]]:
        return [(headers, body) for target, headers, body in self.received if target == self.base_path + path]

    def _page(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        path = target.decode()
        self.received.append((path, dict(headers), body))
        self.repeated |= [name for name, _ in headers].count(self.header) > 1
        if not path.startswith(self.base_path):
            return 404, b""
        path = path.removeprefix(self.base_path)
        if path == "/health":
            return 200, b""
        if path == "/metrics":
            return 200, METRICS
        expected = f"Bearer {self.secret}" if self.header == b"authorization" else self.secret
        if self.secret and dict(headers).get(self.header) != expected.encode():
            return 401, b'{"error": "unauthorized"}'
        if path == "/v1/models":
            return 200, json.dumps({"data": [{"id": name} for name in self.models]}).encode()
        if json.loads(body)["model"] not in self.models:
            return 404, b'{"error": "no such model"}'
        return 200, b'{"choices": []}'


def put(file: Path, text: str) -> Path:
    """Replace a file as Kubernetes updates a mounted secret."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o600)
    os.replace(fresh, file)
    return file


@asynccontextmanager
async def serving(directory: Path, *entries: Mapping[str, Any], limits: Limits | None = None) -> AsyncIterator[Agent]:
    """Run an agent with these entries in its endpoints file."""
    async with running_agent(directory / "agent", [], limits=limits) as agent:
        write(directory, *entries)
        await agent.endpoints.sources.reload_file()
        agent.endpoints.start()
        try:
            yield agent
        finally:
            await agent.endpoints.stop()


def write(directory: Path, *entries: Mapping[str, Any]) -> None:
    specs = [{"name": f"gpu-{n}", "models": [MODEL], "slots": 4, **entry} for n, entry in enumerate(entries)]
    put(directory / "agent" / "endpoints.yaml", json.dumps(specs))


def named(agent: Agent, name: str) -> Endpoint:
    return next(endpoint for endpoint in agent.endpoints.every() if endpoint.name == name)


def statuses(agent: Agent) -> str:
    return json.dumps([endpoint_status(endpoint, None) for endpoint in agent.endpoints.every()])


async def test_a_request_arrives_with_base_path_headers_credential_and_engine_name(tmp_path: Path) -> None:
    secret = put(tmp_path / "key", f"{SECRET}\n")
    async with KeyedEngine("org/llama", base_path="/llama/v2") as keyed:
        entry = {
            "url": keyed.url,
            "base_path": "/llama/v2",
            "headers": {"x-team": "search"},
            "credential_file": str(secret),
            "engine_names": {MODEL: "org/llama"},
        }
        async with serving(tmp_path, entry) as agent:
            pool = agent.endpoints.pools[MODEL]
            await until(lambda: pool.ready == 1 and bool(named(agent, "gpu-0").readings))
            assert named(agent, "gpu-0").reported.loaded == {MODEL}
            reply = await ask(agent, "X-Team: of-the-client")
            assert (reply.status, reply.body) == (200, b'{"choices": []}')
            ((headers, body),) = keyed.requests_to(CHAT)
            assert headers[b"authorization"] == f"Bearer {SECRET}".encode()
            assert headers[b"x-team"] == b"search"
            assert json.loads(body) == {**json.loads(BODY), "model": "org/llama"}
            assert not keyed.repeated
            for path in ("/health", "/v1/models", "/metrics"):
                headers, _ = keyed.requests_to(path)[0]
                assert (headers[b"authorization"], headers[b"x-team"]) == (f"Bearer {SECRET}".encode(), b"search")


class ModelsOnly(SmallHttp):
    """A server of OpenAI's API without a health page, such as Ollama."""

    def __init__(self) -> None:
        self.probed: list[str] = []
        """Targets of GET requests, apart from metrics."""
        self.missing = b"/health"
        """The page that the server lacks."""
        self.status = 404
        super().__init__(self._page)

    def _page(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        if target in (self.missing, b"/metrics"):
            self.probed += [target.decode()] * (target == self.missing)
            return self.status, b'{"detail": "Not Found"}'
        if target == b"/v1/models":
            # Longer than an ordinary answer to a probe.
            self.probed.append(target.decode())
            return 200, json.dumps({"data": [{"id": MODEL, "about": "x" * 100_000}]}).encode()
        return 200, b'{"choices": []}'


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_server_without_a_health_page_is_probed_at_its_list_of_models(tmp_path: Path, status: int) -> None:
    async with ModelsOnly() as server:
        server.status = status
        async with serving(tmp_path, {"url": server.url}) as agent:
            pool, gpu = agent.endpoints.pools[MODEL], named(agent, "gpu-0")
            await until(lambda: pool.ready == 1)
            assert server.probed[0] == "/health"
            assert gpu.reported.loaded == {MODEL}
            assert (await ask(agent)).status == 200
            asked = len(server.probed)
            await until(lambda: len(server.probed) > asked + 3)
            assert set(server.probed[asked:]) == {"/v1/models"}
            server.missing = b"/v1/models"
            await until(lambda: gpu.probe_failure != "")
            await until(lambda: pool.ready == 1 and gpu.probe_failure == "")


@pytest.mark.parametrize("entry", [{"health": "/health"}, {"engine": "http"}])
async def test_a_health_path_that_its_entry_states_has_no_substitute(tmp_path: Path, entry: dict[str, Any]) -> None:
    async with ModelsOnly() as server, serving(tmp_path, {"url": server.url, **entry}) as agent:
        gpu = named(agent, "gpu-0")
        await until(lambda: "404" in gpu.probe_failure)
        assert "the path of its `health`" in gpu.probe_failure
        await until(lambda: server.probed.count("/health") > 4)
        assert (agent.endpoints.pools[MODEL].ready, "/v1/models" in server.probed) == (0, False)


async def test_a_credential_may_have_a_custom_header(tmp_path: Path) -> None:
    secret = put(tmp_path / "key", SECRET)
    async with KeyedEngine(MODEL, header="x-api-key") as keyed:
        entry = {"url": keyed.url, "credential_file": str(secret), "credential_header": "X-Api-Key"}
        async with serving(tmp_path, entry) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
            reply = await ask(agent, "x-api-key: of-the-client", "x_api_key: too")
            assert reply.status == 200
            ((headers, _),) = keyed.requests_to(CHAT)
            assert headers[b"x-api-key"] == SECRET.encode()
            assert b"authorization" not in headers
            assert b"x_api_key" not in headers
            assert not keyed.repeated


async def test_a_metrics_page_on_another_port_receives_no_credential(tmp_path: Path) -> None:
    secret = put(tmp_path / "key", SECRET)
    async with KeyedEngine(MODEL, base_path="/llama") as keyed, KeyedEngine(secret="") as metrics:
        entry = {"url": keyed.url, "base_path": "/llama", "metrics_port": metrics.port, "health": "/llama/health"}
        async with serving(tmp_path, {**entry, "credential_file": str(secret), "headers": {"x-team": "a"}}) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1 and bool(named(agent, "gpu-0").readings))
            ((target, headers, _), *_) = metrics.received
            assert target == "/metrics"
            assert headers.keys().isdisjoint({b"authorization", b"x-team"})
            assert keyed.requests_to("/health"), "a configured health path is the whole path"


async def test_a_secret_is_rotated_while_the_agent_runs_and_appears_nowhere(tmp_path: Path) -> None:
    secret = put(tmp_path / "key", SECRET)
    async with KeyedEngine(MODEL) as keyed:
        with structlog.testing.capture_logs() as logs:
            async with serving(tmp_path, {"url": keyed.url, "credential_file": str(secret)}) as agent:
                endpoint = named(agent, "gpu-0")
                await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
                shown = [statuses(agent)]
                keyed.secret = NEXT_SECRET
                assert (await ask(agent)).status == 503, "the engine's own 401 does not reach the client"
                assert "rejects the secret in" in endpoint_status(endpoint, None)["problem"]
                await until(lambda: agent.endpoints.pools[MODEL].ready == 0)
                shown.append(statuses(agent))
                put(secret, NEXT_SECRET)
                await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
                assert (await ask(agent)).status == 200
                assert endpoint_status(endpoint, None)["problem"] is None
                put(secret, "two\nlines\n")
                await until(lambda: endpoint.problem != "")
                assert "several lines" in endpoint.problem
                assert "the last valid content stays in force" in endpoint.problem
                assert (await ask(agent)).status == 200
                shown += [statuses(agent), agent.metrics.render().decode(), repr(endpoint.spec), repr(endpoint.rewrite)]
        for text in (*shown, repr(logs)):
            assert "sk-0123" not in text


async def test_a_changed_secret_is_read_in_a_thread(tmp_path: Path) -> None:
    secret = put(tmp_path / "key", SECRET)
    spec = EndpointSpec("gpu-0", Address("10.0.0.1", 8000), (MODEL,), 4, credential_file=str(secret))
    credentials = EndpointCredentials()
    credentials.use([spec])
    first = credentials.rewrite(spec)
    assert first is not None
    put(secret, NEXT_SECRET)
    credentials.use([spec])
    assert credentials.rewrite(spec) == first, "the event loop reads only files that it has not read before"
    assert await credentials.reload_changed()
    assert credentials.rewrite(spec) != first


async def test_an_endpoint_without_its_secret_is_not_used_and_no_other_is_affected(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    async with KeyedEngine(MODEL) as keyed, KeyedEngine(MODEL, secret="") as plain:
        entries = {"url": keyed.url, "credential_file": str(secret)}, {"url": plain.url}
        async with serving(tmp_path, *entries) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
            problem = endpoint_status(named(agent, "gpu-0"), None)["problem"]
            missing = (
                "cannot read the credential: No such file or directory; put the engine's secret there, on one line"
            )
            assert problem == f"credential_file: {secret}: {missing}"
            for _ in range(4):
                assert (await ask(agent)).status == 200
            assert keyed.received == [], "nothing is sent without the secret"
            fresh = secret.with_suffix(".new")
            fresh.write_text(SECRET)
            fresh.chmod(0o644)
            fresh.replace(secret)
            await until(lambda: "accessible to every user" in named(agent, "gpu-0").problem)
            secret.chmod(0o600)
            await until(lambda: agent.endpoints.pools[MODEL].ready == 2)


async def test_a_wrong_secret_does_not_attract_traffic(tmp_path: Path) -> None:
    """Only requests detect the wrong secret, since the engine lists no models; it always appears idle."""
    secret = put(tmp_path / "key", "sk-0123456789-wrong")
    async with KeyedEngine(MODEL) as keyed, KeyedEngine(MODEL, secret="") as plain:
        keyed_entry = {"url": keyed.url, "credential_file": str(secret), "engine": "http"}
        async with serving(tmp_path, keyed_entry, {"url": plain.url, "engine": "http"}) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 2)
            endpoint = named(agent, "gpu-0")

            async def is_ejected() -> bool:
                assert (await ask(agent)).status == 200, "retried at the other endpoint"
                return endpoint.ejection.state is EjectionState.EJECTED

            for _ in range(100):
                if await is_ejected():
                    break
            assert endpoint.ejection.state is EjectionState.EJECTED
            assert len(keyed.requests_to(CHAT)) == 3
            assert agent.held() == 0
            await until(lambda: len(keyed.requests_to("/health")) > 12)
            assert "rejects the secret" in endpoint_status(endpoint, None)["problem"], (
                "a health check does not verify the secret"
            )
            keyed.secret = "sk-0123456789-wrong"
            async with asyncio.timeout(PATIENCE_S):
                while endpoint.credential_rejected:
                    assert (await ask(agent)).status == 200
                    await asyncio.sleep(0.05)


async def test_a_clients_401_counts_nothing_without_a_configured_credential(tmp_path: Path) -> None:
    async with KeyedEngine(MODEL) as keyed, serving(tmp_path, {"url": keyed.url, "engine": "http"}) as agent:
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
        for _ in range(6):
            assert (await ask(agent)).status == 401
        assert named(agent, "gpu-0").ejection.failures == 0
        assert endpoint_status(named(agent, "gpu-0"), None)["problem"] is None


async def test_a_retry_uses_the_model_name_of_its_engine(tmp_path: Path) -> None:
    busy = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 4\r\n\r\nbusy"
    order: list[str] = []

    async def first_busy(e: ScriptedEngine, received: ReceivedRequest, writer: Any) -> None:
        if received.head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        order.append(json.loads(received.body)["model"])
        # The engine that receives the first request has no free slot.
        writer.write(busy if len(order) == 1 else JSON_ANSWER)

    async with engine(first_busy) as aliased_gpu, engine(first_busy) as plain_gpu:
        entries = (
            {"url": f"http://{aliased_gpu.address}", "engine_names": {MODEL: "org/llama"}},
            {"url": f"http://{plain_gpu.address}"},
        )
        async with running_agent(tmp_path / "agent", []) as agent:
            write(tmp_path, *entries)
            await agent.endpoints.sources.reload_file()
            for endpoint in agent.endpoints.every():
                endpoint.probed(ProbeOutcome.GOOD)
            seen = set()
            for _ in range(12):
                order.clear()
                assert (await ask(agent)).status == 200
                seen.add(tuple(order))
            assert seen == {("org/llama", MODEL), (MODEL, "org/llama")}


async def test_a_body_whose_model_cannot_be_replaced_is_not_sent(tmp_path: Path) -> None:
    escaped = json.dumps({"model": MODEL, "messages": []}).replace("model", "mod\\u0065l").encode()
    async with KeyedEngine("org/llama", secret="") as alias, KeyedEngine(MODEL, secret="") as plain:
        entries = {"url": alias.url, "engine_names": {MODEL: "org/llama"}}, {"url": plain.url}
        async with serving(tmp_path, *entries) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 2)
            for _ in range(8):
                assert (await ask(agent, body=escaped)).status == 200
            assert len(plain.requests_to(CHAT)) == 8
            write(tmp_path, entries[0])
            await agent.endpoints.sources.reload_file()
            reply = await ask(agent, body=escaped)
            assert reply.status == 503
            assert alias.requests_to(CHAT) == []


async def test_a_large_upload_is_renamed_while_it_arrives(tmp_path: Path) -> None:
    def form(model: str) -> bytes:
        parts = ((b"model", model.encode()), (b"file", bytes(1 << 20)))
        head = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n'
        return b"".join([*(head % part for part in parts), b"--b--\r\n"])

    async with engine(answers_200) as gpu:
        entry = {"url": f"http://{gpu.address}", "engine": "http", "engine_names": {MODEL: "org/whisper"}}
        async with serving(tmp_path, entry, limits=LIMITS) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
            body, renamed = form(MODEL), form("org/whisper")
            client = await RawClient.connect(agent.traffic)
            head = post(body, "Content-Type: multipart/form-data; boundary=b", path="/v1/audio/transcriptions")
            client.send(head[: -(len(body) - 100_000)])
            await until(lambda: agent.held() == 1)
            client.send(head[-(len(body) - 100_000) :])
            assert (await client.answer()).status == 200
            client.close()
            (received,) = [received for received in gpu.requests if received.head.startswith(b"POST")]
            assert received.header("content-length") == str(len(renamed))
            assert received.body == renamed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    for authority in ("ours", "stranger"):
        make_authority(directory, authority)
    for name in ("engine", "agent", "next"):
        make_certificate(directory, "ours", name)
    make_certificate(directory, "stranger", "intruder")
    return directory


async def answers_200(e: ScriptedEngine, received: ReceivedRequest, writer: Any) -> None:
    writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')


@pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")
async def test_mutual_tls_with_certificates_that_change(tmp_path: Path, made: Path) -> None:
    shown: list[str] = []

    async def notes_certificate(e: ScriptedEngine, received: ReceivedRequest, writer: Any) -> None:
        shown.append(dict(field[0] for field in writer.get_extra_info("peercert")["subject"])["commonName"])
        writer.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 27\r\n\r\n{"choices": [], "data": []}')
        writer.close()

    def offer(name: str) -> None:
        for suffix in ("pem", "key"):
            put(tmp_path / f"live.{suffix}", (made / f"{name}.{suffix}").read_text())

    tls = ServerTls(made / "engine.pem", made / "engine.key", made / "ours.pem")()
    offer("agent")
    async with AsyncExitStack() as stack:
        gpu = await stack.enter_async_context(engine(notes_certificate, tls))
        own = {"client_certificate_file": str(tmp_path / "live.pem"), "client_key_file": str(tmp_path / "live.key")}
        entry = {"url": f"https://{gpu.address}", "engine": "http", "ca_file": str(made / "ours.pem"), **own}
        agent = await stack.enter_async_context(serving(tmp_path, entry))
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
        assert (await ask(agent)).status == 200
        assert set(shown) == {"agent"}
        offer("next")
        await until(lambda: shown[-1] == "next")
        assert (await ask(agent)).status == 200
        offer("intruder")
        await until(lambda: agent.endpoints.pools[MODEL].ready == 0)
        offer("agent")
        await until(lambda: agent.endpoints.pools[MODEL].ready == 1)


@pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")
async def test_requests_to_an_engine_have_the_name_in_its_certificate(tmp_path: Path, made: Path) -> None:
    indicated: list[str | None] = []

    def notes_name(socket: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        indicated.append(name)

    tls = ServerTls(made / "engine.pem", made / "engine.key")()
    tls.set_servername_callback(notes_name)
    async with engine(answers_200, tls) as gpu:
        entry = {"dns": f"https://localhost:{gpu.address.port}", "engine": "http", "ca_file": str(made / "ours.pem")}
        async with serving(tmp_path, entry) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
            answer = await ask(agent)
            assert (answer.status, answer.headers["x-penstock-endpoint"]) == (200, "gpu-0-127.0.0.1")
            assert {received.header("host") for received in gpu.requests} == {f"localhost:{gpu.address.port}"}
            assert {received.head.split(b" ", 1)[0] for received in gpu.requests} == {b"GET", b"POST"}
            assert set(indicated) == {"localhost"}


@pytest.mark.skipif(not has_openssl_3(), reason="needs openssl >= 3 to make certificates")
async def test_an_engine_that_the_authorities_of_its_entry_did_not_sign_receives_nothing(
    tmp_path: Path, made: Path
) -> None:
    secret = put(tmp_path / "key", SECRET)
    ours = ServerTls(made / "engine.pem", made / "engine.key")()
    theirs = ServerTls(made / "intruder.pem", made / "intruder.key")()
    async with (
        engine(answers_200, ours) as good,
        engine(answers_200, theirs) as bad,
        engine(answers_200, ours) as misnamed,
    ):
        common = {"engine": "http", "ca_file": str(made / "ours.pem"), "credential_file": str(secret)}
        entries = (
            {"url": f"https://{good.address}", **common},
            {"url": f"https://{bad.address}", **common},
            {"url": f"https://{misnamed.address}", **common, "server_name": "not-in-it.test"},
        )
        async with serving(tmp_path, *entries) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
            assert named(agent, "gpu-0").view.ready
            for _ in range(4):
                assert (await ask(agent)).status == 200
            assert (bad.requests, misnamed.requests) == ([], [])
            # A change of the trusted authority closes the connections that were opened before.
            other_authority = {**entries[0], "ca_file": str(made / "stranger.pem")}
            write(tmp_path, other_authority)
            await agent.endpoints.sources.reload_file()
            await until(lambda: agent.endpoints.pools[MODEL].ready == 0)
            before = len(good.requests)
            assert (await ask(agent)).status == 503
            assert len(good.requests) == before


async def test_an_engine_process_behind_key_base_path_and_name(tmp_path: Path) -> None:
    name = "meta-llama/Llama-3.1-8B"
    served = {"api_key": SECRET, "base_path": "/llama", "served_model_name": name}
    with running_engines(tmp_path, {"name": "keyed", **served}) as process:
        entry = {"url": process.urls["keyed"], "base_path": "/llama", "engine_names": {MODEL: name}}
        async with serving(tmp_path, entry) as agent:
            await until(lambda: agent.endpoints.pools[MODEL].ready == 1)
            assert (await ask(agent)).status == 401, "without a credential, the engine's answer is the client's"
            secret = put(tmp_path / "key", SECRET)
            write(tmp_path, {**entry, "credential_file": str(secret)})
            await agent.endpoints.sources.reload_file()
            endpoint = named(agent, "gpu-0")
            await until(lambda: endpoint.reported.loaded == {MODEL} and endpoint.kind is EngineKind.VLLM)
            chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
            reply = await ask(agent, body=json.dumps(chat).encode())
            assert reply.status == 200
            assert json.loads(reply.body)["model"] == name, "responses are not changed"
