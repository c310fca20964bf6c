"""KV events of an engine over a real socket: stored, evicted and cleared blocks, restarts, and silence."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from adapters.kv_event_reader import KvEventReader, MissingLibrary
from penstock.kv_cache.held_blocks import chain_keys
from penstock.kv_cache.held_prefixes import HeldPrefixes
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.kv_cache.kv_event_follower import BATCHES_AT_ONCE, KvEventFollower
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.kv_event_publisher import BLOCK, KvEventPublisher, removed, stored
from tests.support.wait import until

TOKENS = list(range(2 * BLOCK))
FIRST, SECOND = chain_keys(TOKENS, BLOCK)


@asynccontextmanager
async def following(port: int) -> AsyncIterator[tuple[KvEventFollower, HeldPrefixes]]:
    held = HeldPrefixes()
    follower = KvEventFollower("a", "127.0.0.1", port, held, Random(1))
    task = asyncio.create_task(follower.keep_following())
    try:
        yield follower, held
    except AssertionError as error:
        error.add_note(f"the follower: {follower.status()}; its endpoints: {list(held.endpoints)}")
        raise
    finally:
        task.cancel()
        await asyncio.wait({task})
        assert "a" not in held.endpoints, "what is no longer followed is estimated"


def holds(held: HeldPrefixes, *keys: int) -> Callable[[], bool]:
    """Whether the endpoint holds just the first of the two blocks of TOKENS, both, or none."""
    return lambda: (
        "a" in held.endpoints and [key for key in (FIRST, SECOND) if held.endpoints["a"].holds(key)] == list(keys)
    )


async def test_blocks_are_held_until_they_are_evicted_or_cleared() -> None:
    async with KvEventPublisher() as engine, following(engine.port) as (follower, held):
        await until(holds(held))
        engine.publish(stored([1, 2], None, TOKENS))
        await until(holds(held, FIRST, SECOND))
        engine.publish(removed(2))
        await until(holds(held, FIRST))
        engine.publish({"type": "AllBlocksCleared"})
        await until(holds(held))
        assert follower.status()["prefixes"] == "exact"
        assert (follower.log.batches, follower.log.gaps) == (3, 0)


async def test_a_long_log_is_applied_in_parts() -> None:
    async with KvEventPublisher() as engine:
        for number in range(3 * BATCHES_AT_ONCE + 1):
            engine.publish(stored([100 + number], None, [number] * BLOCK))
        async with following(engine.port) as (follower, held):
            await until(lambda: "a" in held.endpoints)
            assert len(held.endpoints["a"]) == 3 * BATCHES_AT_ONCE + 1
            assert (follower.log.blocks.complete, follower.log.gaps) == (True, 0)


async def test_an_unreachable_engine_is_estimated_and_a_restarted_one_read_again() -> None:
    engine = KvEventPublisher()
    async with following(engine.port) as (follower, held):
        engine.publish(stored([1, 2], None, TOKENS))
        await until(holds(held, FIRST, SECOND))
        await engine.close()
        await until(lambda: "a" not in held.endpoints)
        assert "did not answer" in follower.problem
        async with KvEventPublisher(engine.port) as restarted:
            restarted.publish(stored([7], None, TOKENS[:BLOCK]))
            await until(holds(held, FIRST))
            assert follower.log.gaps == 1


async def test_an_engine_with_another_protocol_is_estimated() -> None:
    async with KvEventPublisher() as engine, following(engine.port) as (follower, held):
        engine.log.append(b"no events")
        await until(lambda: bool(follower.log.problem))
        await until(lambda: "a" in held.endpoints)
        assert held.endpoints["a"].holds(FIRST) is None, "the estimate applies"


async def test_the_endpoints_file_names_the_port(tmp_path: Path) -> None:
    async with KvEventPublisher() as engine:
        file = tmp_path / "endpoints.yaml"
        entry = "- {name: a, url: 'http://127.0.0.1:9', models: [m], slots: 1, kv_events_port: %d}\n"
        file.write_text(entry % engine.port)
        held = HeldPrefixes()
        endpoints = EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1), held_prefixes=held)
        endpoints.start()
        try:
            engine.publish(stored([1, 2], None, TOKENS))
            await until(holds(held, FIRST, SECOND))
            follower = next(endpoints.every()).kv_events
            assert follower is not None
            assert follower.status()["blocks"] == 2
            file.write_text((entry % engine.port).replace(f", kv_events_port: {engine.port}", ""))
            await until(lambda: "a" not in held.endpoints)
        finally:
            await endpoints.stop()


def test_without_the_library_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zmq.asyncio", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'penstock\[kv-events\]'"):
        KvEventReader("127.0.0.1", 5557)
