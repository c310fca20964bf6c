"""The job store is lost for longer than claims are valid, while jobs run and wait in two regions that share it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.jobs import claims
from penstock.policy.kinds.jobs import JobStore
from regional_agent.jobs import job_worker
from regional_agent.jobs.async_requests import request_run
from regional_agent.jobs.batches import batch_run
from regional_agent.jobs.storage import lost_regions
from regional_agent.jobs.storage.lost_regions import LostRegions
from tests.integration.test_async_requests import ended as job_ended
from tests.integration.test_async_requests import submit
from tests.support.agents import running_agent
from tests.support.chats import answers_after
from tests.support.jobs import JobClient, embeds, input_file, job_store
from tests.support.planet import MODEL
from tests.support.relay import Relay
from tests.support.s3_server import BUCKET, NEEDS_MOTO, s3_address, s3_server
from tests.support.small_http import SmallHttp
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import PATIENCE_S, until, until_async

REGIONS = ("eu-de", "eu-de", "eu-es")
REQUESTS = 40
FIRST = [f"text {number}" for number in range(10)]
"""What engines respond to before the loss."""


class LostStore(NamedTuple):
    """A job store of all REGIONS that a test loses and restores."""

    document: JobStore
    lose: Callable[[], None]
    restore: Callable[[], None]


Opens = Callable[[Path, pytest.MonkeyPatch], AbstractAsyncContextManager[LostStore]]


@asynccontextmanager
async def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LostStore]:
    folder, away = tmp_path / "store", tmp_path / "away"

    def lose() -> None:
        folder.rename(away)
        # As below a file system that is no longer mounted.
        folder.mkdir()

    def restore() -> None:
        # Fails unless the folder is empty.
        folder.rmdir()
        away.rename(folder)

    yield LostStore(job_store(folder, *REGIONS), lose, restore)


@asynccontextmanager
async def in_a_silent_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LostStore]:
    """A bucket whose server accepts connections and does not respond: operations end by their time limits."""
    with s3_address(monkeypatch) as port:
        async with s3_server(port), Relay(port) as relay:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{relay.endpoint}")
            document = JobStore("jobs", f"s3://{BUCKET}/jobs", covers=frozenset(REGIONS))
            yield LostStore(document, relay.freeze, relay.thaw)


@asynccontextmanager
async def in_a_refusing_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LostStore]:
    """A bucket whose server responds to each operation with 503, as one that is overloaded."""
    refusing = SmallHttp(lambda *_: (503, b"<Error><Code>SlowDown</Code></Error>"))
    with s3_address(monkeypatch) as port:
        async with s3_server(port), Relay(port) as relay:
            await refusing.start()
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{relay.endpoint}")
            document = JobStore("jobs", f"s3://{BUCKET}/jobs", covers=frozenset(REGIONS))
            yield LostStore(document, lambda: relay.move_to(refusing.port), lambda: relay.move_to(port))
            await refusing.stop()


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let claims end after four seconds, and regions be lost."""
    for module in (batch_run, job_worker, claims, request_run):
        monkeypatch.setattr(module, "LEASE_S", 4.0)
    for module in (batch_run, request_run):
        monkeypatch.setattr(module, "RENEW_S", 0.5)
    monkeypatch.setattr(claims, "CLOCK_SKEW_S", 0.1)
    monkeypatch.setattr(claims, "LOST_S", 4.0)
    monkeypatch.setattr(claims, "MAX_UNSEEN_S", 0.5)
    monkeypatch.setattr(lost_regions, "BEAT_S", 0.2)
    monkeypatch.setattr(job_worker, "POLL_S", 0.2)
    monkeypatch.setattr(batch_run, "LOST_RETRY_S", 1.0)
    monkeypatch.setattr(request_run, "RETRY_S", 1.0)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("opens", "away_s"),
    [
        pytest.param(in_a_folder, 6.0, id="folder"),
        pytest.param(in_a_folder, 600.0, marks=pytest.mark.long, id="folder-ten-minutes"),
        pytest.param(in_a_refusing_bucket, 180.0, marks=NEEDS_MOTO, id="bucket-refuses"),
        pytest.param(in_a_silent_bucket, 600.0, marks=NEEDS_MOTO, id="bucket-ten-minutes"),
    ],
)
async def test_no_request_runs_twice_and_no_region_counts_as_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Opens, away_s: float
) -> None:
    if away_s < claims.LEASE_S:
        shorten(monkeypatch)
    release, looks, lost = asyncio.Event(), Counter[LostRegions](), set[str]()
    later, look = answers_after(release, embeds), LostRegions._look

    async def responds(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        is_first = json.loads(received.body)["input"] in FIRST
        await (embeds if is_first else later)(e, received, writer)

    async def looked(regions: LostRegions) -> None:
        await look(regions)
        looks[regions] += 1
        lost.update(regions._stores.lost)

    monkeypatch.setattr(LostRegions, "_look", looked)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opens(tmp_path, monkeypatch))
        gpu = await stack.enter_async_context(engine(responds))
        agents = [
            await stack.enter_async_context(
                running_agent(
                    tmp_path / str(number),
                    [gpu.address],
                    region=region,
                    name=str(number),
                    slots=16,
                    job_store=store.document,
                )
            )
            for number, region in enumerate(REGIONS)
        ]
        client = await stack.enter_async_context(JobClient(agents[0].traffic))

        async def all_look_twice() -> None:
            before = looks.copy()
            await until(lambda: len(looks) == 3 and all(looks[each] > before[each] + 1 for each in looks), 120.0)

        async def bounded_refusal() -> None:
            """Reading a job ends with 503, and requests of clients are served."""
            async with asyncio.timeout(PATIENCE_S):
                refused = await client.http.get(f"/v1/batches/{batch}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "store_unavailable")
            assert (await client.http.post("/v1/embeddings", json={"model": MODEL, "input": "c"})).status_code == 200

        await all_look_twice()
        job = (await submit(client, {"model": MODEL, "input": "held"})).json()["id"]
        await until(lambda: len(gpu.requests) == 1)
        batch = await client.started(input_file(REQUESTS))
        runs = [agent.jobs.worker._batches for agent in agents]
        await until(lambda: any(batch in each and each[batch].counts.completed == len(FIRST) for each in runs))
        store.lose()
        release.set()
        began_at = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began_at + away_s:
            await bounded_refusal()
            await asyncio.sleep(away_s / 30)
        store.restore()

        async def is_served() -> bool:
            return (await client.http.get(f"/v1/batches/{batch}")).status_code == 200

        await until_async(is_served)
        found = await client.ended(batch)
        assert (await job_ended(client, job))["status"] == "completed"
        await all_look_twice()
        lines = await client.lines(found["output_file_id"])
        assert Counter(each["custom_id"] for each in lines) == Counter(f"r{number}" for number in range(REQUESTS))
        ran = Counter(json.loads(each.body)["input"] for each in gpu.requests)
        del ran["c"]
        assert (len(ran), set(ran.values()), lost) == (REQUESTS + 1, {1}, set())
