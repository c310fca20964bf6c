"""Responses above 1 MiB that are kept: their bodies are in the job store, under the rules of the small ones."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from adapters.servers.redis import RedisServer
from penstock.policy.kinds.result_cache import ResultCache
from penstock.result_cache.cache_purges import CachePurge, CachePurges
from regional_agent.result_cache import stored_bodies
from tests.integration.test_batches import with_tenants
from tests.integration.test_result_cache import ALL, BODY, MISSED, Kept, keeping
from tests.support.jobs import EMBEDDINGS, job_store, stored_files
from tests.support.planet import MODEL
from tests.support.s3_server import BUCKET, NEEDS_MOTO, s3_address, s3_server
from tests.support.sockets import Answer, RawClient, ReceivedRequest, ScriptedEngine, post
from tests.support.wait import PATIENCE_S, until

LARGE = ResultCache("large", ("openai-*",), ("*",), max_response_bytes=16 << 20)
SIZE = 2_500_000


async def embeds_much(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    """The script of an engine whose responses have the input of the request, and SIZE bytes more."""
    body = json.dumps({"object": "list", "text": json.loads(received.body)["input"], "data": "x" * SIZE}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    writer.write(head + body)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no stall of a busy machine count as a store that does not answer."""
    monkeypatch.setattr(stored_bodies, "OPEN_TIMEOUT_S", PATIENCE_S)


def is_hit(answer: Answer) -> bool:
    return answer.headers["cache-status"].startswith("penstock; hit")


def bodies_in(store: Path) -> list[Path]:
    return stored_files(store, "results/*")


def text(number: int) -> bytes:
    return BODY.replace(b"same", b"%d" % number)


async def kept_and_hit(kept: Kept) -> Answer:
    """Ask twice, and return the second answer, which is the kept one."""
    first = await kept.ask()
    assert (first.status, first.headers["cache-status"]) == (200, MISSED)
    await until(lambda: kept.value("stored_bytes") == len(first.body))
    again = await kept.ask()
    assert is_hit(again)
    assert (again.body, again.headers["etag"], kept.runs) == (first.body, first.headers["etag"], 1)
    return again


async def test_a_large_response_is_kept_in_the_job_store_of_the_region(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    store = job_store(tmp_path / "store")
    async with (
        keeping(tmp_path / "a", LARGE, script=embeds_much, job_store=store, redis_url=redis_server.url) as one,
        keeping(
            tmp_path / "b", LARGE, script=embeds_much, job_store=store, redis_url=redis_server.url, name="b"
        ) as two,
    ):
        hit = await kept_and_hit(one)
        assert hit.headers["content-type"] == "application/json"
        assert hit.headers["content-length"] == str(len(hit.body))
        (stored,) = bodies_in(tmp_path / "store")
        assert stored.read_bytes() == hit.body
        assert one.agent.counted() == {"ok": 1.0, "cached": 1.0}
        assert one.value("sent_bytes") == len(hit.body)
        memory = one.agent.metrics.registry.get_sample_value("penstock_agent_result_cache_memory_bytes")
        assert memory is not None
        assert memory < 10_000
        # Another agent finds it by Redis, which has the entry without the body.
        other = None
        while other is None or not is_hit(other):
            other = await two.ask()
        assert other.body == hit.body
        # The client that has the body receives none, and the store is not read.
        stored.unlink()
        unchanged = await one.ask(f"If-None-Match: {hit.headers['etag']}")
        assert (unchanged.status, unchanged.body) == (304, b"")
        # A body that is lost is a miss, and is kept again.
        runs = one.runs
        lost = await one.ask()
        assert (lost.status, lost.headers["cache-status"], one.runs) == (200, MISSED, runs + 1)
        await until(lambda: len(bodies_in(tmp_path / "store")) == 1)


async def test_tenants_purges_and_ages_are_those_of_small_responses(tmp_path: Path) -> None:
    async with keeping(tmp_path, LARGE, script=embeds_much, job_store=job_store(tmp_path / "store")) as kept:
        keys = with_tenants(kept.agent, "a", "b")
        for number, key in enumerate(keys.values(), start=1):
            assert (await kept.ask(f"Authorization: Bearer {key}")).headers["cache-status"] == MISSED
            await until(lambda n=number: len(bodies_in(tmp_path / "store")) == n)  # type: ignore[misc]
        await until(lambda: kept.value("stored_bytes") > 2 * SIZE)
        assert is_hit(await kept.ask(f"Authorization: Bearer {keys['a']}"))
        assert not is_hit(await kept.ask(f"Authorization: Bearer {keys['a']}", "Cache-Control: no-cache"))
        await until(lambda: kept.value("stored_bytes") > 3 * SIZE)
        kept.purges = CachePurges().with_purge(CachePurge(MODEL, "1", kept.clock.now, "ops", "test"))
        assert not is_hit(await kept.ask(f"Authorization: Bearer {keys['a']}"))
        await until(lambda: kept.value("stored_bytes") > 4 * SIZE)
        assert is_hit(await kept.ask(f"Authorization: Bearer {keys['a']}"))
        kept.clock.now += 3601.0
        assert not is_hit(await kept.ask(f"Authorization: Bearer {keys['a']}"))
        await until(lambda: kept.value("stored_bytes") > 5 * SIZE)
        assert len(bodies_in(tmp_path / "store")) >= 4
        kept.clock.now += stored_bodies.LEFT_S
        await kept.bodies.sweep()
        assert len(bodies_in(tmp_path / "store")) == 1, "the others have expired"


async def test_a_response_is_not_kept_where_a_forbidden_region_reads_the_store(tmp_path: Path) -> None:
    # Requests of the data class "personal" may be served in the regions of the EU only.
    for store, is_kept in (
        (job_store(tmp_path / "eu", "eu-de"), True),
        (job_store(tmp_path / "us", "eu-de", "us-east"), False),
    ):
        folder = Path(store.url.removeprefix("file://"))
        async with keeping(tmp_path / "agent", LARGE, script=embeds_much, job_store=store) as kept:
            keys = with_tenants(kept.agent, "governed")
            tenants = kept.agent.config.policy.tenants
            governed = replace(tenants["governed"], data_class="personal")
            kept.agent.config.policy = replace(kept.agent.config.policy, tenants=tenants | {"governed": governed})
            asks = [f"Authorization: Bearer {keys['governed']}"]
            assert (await kept.ask(*asks)).status == 200
            if is_kept:
                await until(lambda: kept.value("stored_bytes") > 0)
            await until(lambda: not kept.bodies._tasks)
            assert is_hit(await kept.ask(*asks)) is is_kept
            assert bool(bodies_in(folder)) is is_kept
            if is_kept:
                # A later policy lets agents of a forbidden region read the store.
                wide = replace(store, successors=("us-east",))
                kept.agent.config.policy = replace(kept.agent.config.policy, job_stores=(wide,))
                assert not is_hit(await kept.ask(*asks))


async def test_without_a_job_store_large_responses_are_not_kept(tmp_path: Path) -> None:
    async with keeping(tmp_path, LARGE, script=embeds_much) as kept:
        for _ in range(2):
            assert (await kept.ask()).headers["cache-status"] == MISSED
            await until(lambda: not kept.bodies._tasks)
    async with keeping(tmp_path, ALL, script=embeds_much, job_store=job_store(tmp_path / "store")) as kept:
        await kept.ask()
        assert not kept.bodies._tasks, "above `max_response_bytes`"


async def test_responses_take_no_more_than_the_policy_permits(tmp_path: Path) -> None:
    cache, store = replace(LARGE, max_stored_bytes=4 * SIZE), tmp_path / "store"
    async with keeping(tmp_path, cache, script=embeds_much, job_store=job_store(store)) as kept:
        for number in range(8):
            kept.clock.now += 1.0
            await kept.ask(body=text(number))
            await until(lambda n=number: kept.value("stored_bytes") > (n + 1) * SIZE)  # type: ignore[misc]
            assert sum(path.stat().st_size for path in bodies_in(store)) <= 4 * SIZE
        hits = [is_hit(await kept.ask(body=text(number))) for number in (7, 6)]
        assert hits == [True, True], "the first ones made room"
        # Another agent has written meanwhile, which this one sees once its knowledge is old.
        kept.bodies._sizes.clear()
        expiry = int(kept.clock.now)
        for number in range(3):
            other = store / f"results/eu-de/large/{expiry + number:012d}/other"
            other.parent.mkdir()
            other.write_bytes(b"x" * SIZE)
        await kept.ask(body=text(9))
        await until(lambda: not kept.bodies._tasks)
        assert sum(path.stat().st_size for path in bodies_in(store)) <= 4 * SIZE
        assert is_hit(await kept.ask(body=text(9)))


async def test_a_damaged_body_is_never_received_as_a_whole(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with keeping(tmp_path, LARGE, script=embeds_much, job_store=job_store(store)) as kept:
        hit = await kept_and_hit(kept)
        (path,) = bodies_in(store)
        for damaged in (hit.body[:-1] + b"?", b"?" + hit.body[1:], hit.body[:-5], hit.body[:1_500_000]):
            path.write_bytes(damaged)
            client = await RawClient.connect(kept.agent.traffic)
            client.send(post(BODY, path=EMBEDDINGS))
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError, EOFError)):
                await client.answer()
            client.close()
        path.write_bytes(hit.body)
        assert is_hit(await kept.ask())


async def test_a_store_that_fails_is_a_miss(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with keeping(tmp_path, LARGE, script=embeds_much, job_store=job_store(store)) as kept:
        await kept_and_hit(kept)
        results = store / "results"
        results.rename(store / "away")
        results.write_bytes(b"no folder")
        for number in range(2):
            missed = await kept.ask(body=BODY if number else text(1))
            assert (missed.status, missed.headers["cache-status"]) == (200, MISSED)
            await until(lambda: not kept.bodies._tasks)


@pytest.mark.parametrize("mark", [pytest.param(0, marks=NEEDS_MOTO)])
async def test_large_responses_are_kept_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int) -> None:
    with s3_address(monkeypatch) as port:
        store = replace(job_store(tmp_path), url=f"s3://{BUCKET}/jobs")
        cache = replace(LARGE, max_stored_bytes=2 * SIZE)
        async with s3_server(port), keeping(tmp_path, cache, script=embeds_much, job_store=store) as kept:
            await kept_and_hit(kept)
            opened = kept.agent.jobs.stores.opened()
            assert opened is not None
            (stored,) = await opened.files.storage.list("results/eu-de")
            assert stored.size_bytes > SIZE
            kept.clock.now += 1.0
            await kept.ask(body=text(1))
            await until(lambda: not kept.bodies._tasks)
            (stored,) = await opened.files.storage.list("results/eu-de")
            assert is_hit(await kept.ask(body=text(1)))
            assert not is_hit(await kept.ask())
            await until(lambda: not kept.bodies._tasks)
            kept.clock.now += 3601.0 + stored_bodies.LEFT_S
            await kept.bodies.sweep()
            assert await opened.files.storage.list("results/eu-de") == []
