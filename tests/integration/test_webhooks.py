"""Webhooks of jobs: signed, repeated, and never sent to an address that the policy does not permit."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from penstock.jobs.batches.batch_state import BatchState
from penstock.jobs.job_records import BatchEnd, BatchRecord, JobSender
from penstock.jobs.store_paths import JobPaths, expiring
from penstock.jobs.webhook import DELAYS_S, MAX_AGE_S, MAX_ATTEMPTS, signature_of
from regional_agent.jobs.job_metrics import JobMetrics
from regional_agent.jobs.storage.job_storage import JobStorages
from regional_agent.jobs.storage.job_stores_in_use import JobStoresInUse
from regional_agent.jobs.webhooks import webhook_request, webhook_sender
from regional_agent.jobs.webhooks.webhook_keys import WebhookKeys, read_webhook_keys
from regional_agent.jobs.webhooks.webhook_request import WebhookClient, WebhookFailed
from regional_agent.jobs.webhooks.webhook_sender import MAX_RUNNING_OF_TENANT, WebhookSender
from tests.integration.test_async_requests import submit
from tests.integration.test_batches import serving, with_tenants
from tests.support.jobs import JobClient, embeds, input_file, job_store
from tests.support.sockets import engine
from tests.support.wait import PATIENCE_S, until

KEYS = WebhookKeys((b"k" * 32, b"l" * 32))


class Receiver:
    """A server that receives webhooks."""

    def __init__(self, response: bytes) -> None:
        self.response = response
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        body = await reader.readexactly(int(headers["content-length"]))
        self.received.append((headers, body))
        writer.write(self.response)
        await reader.read()
        writer.close()


@asynccontextmanager
async def receiver(response: bytes = b"HTTP/1.1 204 No Content\r\n\r\n") -> AsyncIterator[Receiver]:
    """Run a receiver."""
    found = Receiver(response)
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    async with server:
        found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        yield found


async def test_the_ends_of_jobs_and_batches_arrive_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_sender, "POLL_S", 0.2)
    store = job_store(tmp_path / "store", webhook_networks=("127.0.0.0/8",))
    async with (
        engine(embeds) as gpu,
        serving(tmp_path, gpu, job_store=store) as (agent, _),
        receiver() as hook,
    ):
        agent.jobs.webhooks._keys.use(KEYS)
        keys = with_tenants(agent, "a")
        async with JobClient(agent.traffic, keys["a"]) as client:
            asked = {"x-webhook-url": hook.url}
            job = (await submit(client, **asked)).json()["id"]
            batch = await client.started(input_file(2), headers=asked)
            await until(lambda: len(hook.received) == 2)
            secret = (await client.http.get("/v1/webhooks/secret")).json()["secret"]
            assert (await client.http.get("/v1/webhooks/other")).status_code == 404
        assert gpu.requests[0].header("x-webhook-url") is None
        events = {}
        for headers, body in hook.received:
            event = json.loads(body)
            events[event["data"]["id"]] = event["type"]
            key = b64decode(secret.removeprefix("whsec_"))
            timestamp = int(headers["webhook-timestamp"])
            assert abs(timestamp - time.time()) < 300
            assert headers["webhook-id"] == event["id"]
            expected = signature_of([key], event["id"], timestamp, body)
            assert headers["webhook-signature"].split(" ")[0] == expected
        assert events == {job: "job.completed", batch: "batch.completed"}
        counted = agent.metrics.registry.get_sample_value
        await until(lambda: counted("penstock_agent_webhooks_total", {"outcome": "delivered"}) == 2)


async def test_urls_that_cannot_be_used_are_refused_at_once(tmp_path: Path) -> None:
    async with engine(embeds) as gpu, serving(tmp_path, gpu) as (agent, client):
        refused = await submit(client, **{"x-webhook-url": "https://a.example/"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "webhooks_not_offered")
        assert refused.headers["x-should-retry"] == "false"
        assert (await client.http.get("/v1/webhooks/secret")).status_code == 501
        agent.jobs.webhooks._keys.use(KEYS)
        for url, code in (
            ("https://user:x@a.example/", "invalid_webhook_url"),
            ("http://a.example/", "webhook_forbidden"),
            ("https://127.0.0.1/", "webhook_forbidden"),
            ("https://169.254.169.254/latest/meta-data", "webhook_forbidden"),
            ("https://[::ffff:10.0.0.1]/", "webhook_forbidden"),
        ):
            refused = await submit(client, **{"x-webhook-url": url})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), url
        assert (await client.http.get("/v1/jobs")).json()["data"] == []


async def test_a_name_that_resolves_to_a_forbidden_address_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected = []

    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.216.34", "10.0.0.1"]

    async def connect(*args: Any, **options: Any) -> Any:
        connected.append(args)
        raise OSError

    client = WebhookClient(cast(Any, None), resolve)
    monkeypatch.setattr(asyncio, "open_connection", connect)
    url = webhook_request.WebhookUrl(True, "rebinding.example", 443, "/")
    with pytest.raises(WebhookFailed, match=r"10\.0\.0\.1 is not a public address"):
        await client.post(url, {}, b"", ())
    assert connected == []


async def test_a_slow_name_server_delays_no_other_work_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: release.wait() and [])
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    resolving = asyncio.create_task(webhook_request.resolve("slow.example", 443))
    await asyncio.sleep(0)
    try:
        assert await asyncio.wait_for(asyncio.to_thread(lambda: 7), PATIENCE_S) == 7
    finally:
        release.set()
    assert await resolving == []


async def test_redirects_slow_and_endless_responses_are_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    client = WebhookClient(cast(Any, None))
    for response, problem in (
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\n\r\n", "status 302"),
        (b"HTTP/1.1 500 No\r\n\r\n", "status 500"),
        (b"", "no response within"),
        (b"x" * 100_000, "LimitOverrunError"),
        (b"SSH-2.0-x\r\n", "not HTTP"),
    ):
        monkeypatch.setattr(webhook_request, "TIMEOUT_S", PATIENCE_S if response else 1.0)
        async with receiver(response) as hook:
            port = int(hook.url.split(":")[2].partition("/")[0])
            url = webhook_request.WebhookUrl(False, "127.0.0.1", port, "/")
            with pytest.raises(WebhookFailed, match=problem):
                await client.post(url, {}, b"{}", [ip_network("127.0.0.0/8")])
            assert len(hook.received) == 1


class Fleet:
    """Senders of one region whose receivers answer as a test sets it."""

    def __init__(self, folder: Path) -> None:
        self.now = 1e9
        self.posts: list[tuple[str, str]] = []
        self.accepts = False
        self.hold: asyncio.Event | None = None
        document = job_store(folder)
        policy = SimpleNamespace(job_store=lambda region: document)
        config = cast(Any, SimpleNamespace(policy=policy))
        self.stores = JobStoresInUse("eu-de", config, JobStorages(), Random(1))
        self.metrics = JobMetrics(CollectorRegistry())
        self.senders = [self.sender(), self.sender()]

    def sender(self) -> WebhookSender:
        client = cast(Any, SimpleNamespace(post=self.post))
        return WebhookSender(self.stores, KEYS, client, self.metrics, Random(1), lambda: self.now)

    async def post(self, url: Any, headers: dict[str, str], body: bytes, networks: Any) -> None:
        self.posts.append((url.host, headers["webhook-id"]))
        if self.hold is not None:
            await self.hold.wait()
        if not self.accepts:
            raise WebhookFailed("no")

    async def end(self, tenant: str, number: int) -> None:
        opened = self.stores.opened()
        assert opened is not None
        batch, url = f"batch_{number:032x}", f"https://{tenant}.example/"
        record = BatchRecord(batch, JobSender(tenant, "open"), "file-1", "/", "24h", 0, 0, 1, webhook=url)
        await opened.batches.end(record, BatchEnd(BatchState.COMPLETED, self.now))

    async def expire(self, tenant: str, number: int) -> None:
        """Delete a job by age, so that another one may have its identifier."""
        opened = self.stores.opened()
        assert opened is not None
        paths = JobPaths(tenant, f"batch_{number:032x}")
        end = await opened.batches.find_end(paths)
        assert end is not None
        await opened.batches.delete_expired(expiring(tenant, paths.id, end.at))

    async def look(self) -> None:
        for sender in self.senders:
            await sender.look()
        await asyncio.gather(*(task for sender in self.senders for task in sender._running.values()))

    async def pending(self) -> int:
        opened = self.stores.opened()
        assert opened is not None
        return len(await opened.files.storage.list("webhooks"))


async def test_a_webhook_is_repeated_with_the_same_identifier_and_given_up(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    await fleet.end("a", 1)
    for attempt in range(MAX_ATTEMPTS):
        await fleet.look()
        await fleet.look()
        assert len(fleet.posts) == attempt + 1, "of two agents one begins each attempt"
        fleet.now += DELAYS_S[min(attempt, len(DELAYS_S) - 1)] + 1
    assert len(set(fleet.posts)) == 1
    assert await fleet.pending() > 0
    await fleet.look()
    assert (await fleet.pending(), len(fleet.posts)) == (0, MAX_ATTEMPTS)


async def test_a_clock_that_runs_ahead_for_a_while_loses_and_delays_no_webhook(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.now = begun_at = time.time()
    await fleet.end("a", 1)
    fleet.now += 2 * MAX_AGE_S
    await fleet.look()
    assert (len(fleet.posts), await fleet.pending()) == (0, 1)
    fleet.now, fleet.accepts = begun_at + 1, True
    await fleet.look()
    assert len(fleet.posts) == 1


async def test_an_accepted_webhook_is_sent_once(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    await fleet.end("a", 1)
    await fleet.look()
    fleet.now, fleet.accepts = fleet.now + 6, True
    for _ in range(3):
        await fleet.look()
    assert (await fleet.pending(), len(fleet.posts)) == (1, 2)
    fleet.now += 61
    await fleet.look()
    assert (await fleet.pending(), len(fleet.posts)) == (0, 2)


@pytest.mark.parametrize("accepts", [True, False])
async def test_a_job_that_ends_again_after_its_deletion_has_an_event_of_its_own(tmp_path: Path, accepts: bool) -> None:
    fleet = Fleet(tmp_path)
    fleet.accepts = accepts
    await fleet.end("a", 1)
    await fleet.look()
    fleet.now, fleet.accepts = fleet.now + 1, True
    await fleet.expire("a", 1)
    await fleet.end("a", 1)
    await fleet.look()
    assert len(set(fleet.posts)) == len(fleet.posts) == 2
    fleet.now += 61
    await fleet.look()
    await fleet.look()
    assert len(set(fleet.posts)) == 2


async def test_a_silent_receiver_delays_the_webhooks_of_its_tenant_alone(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    del fleet.senders[1]
    fleet.hold = asyncio.Event()
    for number in range(20):
        await fleet.end("a", number)
    await fleet.end("b", 100)
    await fleet.senders[0].look()
    await until(lambda: len(fleet.posts) == MAX_RUNNING_OF_TENANT + 1)
    assert [host for host, _ in fleet.posts].count("b.example") == 1
    fleet.hold.set()
    await asyncio.gather(*fleet.senders[0]._running.values())


def test_the_keys_are_a_file_of_long_lines(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"a" * 64 + b"\n" + b"b" * 64 + b"\n")
    file.chmod(0o600)
    assert len(read_webhook_keys(file).secrets_of("t")) == 2
