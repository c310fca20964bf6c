"""The large kept responses of a region exceed their bound by no more than docs/result-cache.md states."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from adapters.object_store.object_store import StoredObject
from penstock.policy.kinds.result_cache import ResultCache
from penstock.result_cache.cached_result import CachedResult
from regional_agent.result_cache.stored_bodies import StoredBodies
from tests.support.jobs import job_store
from tests.support.planet import policy

BOUND_BYTES, MAX_BYTES = 100_000, 3000
CACHE = ResultCache("large", ("*",), ("*",), max_stored_bytes=BOUND_BYTES)


class SlowStorage:
    """A store in memory, each of whose operations takes some turns of the event loop before it is seen."""

    def __init__(self, rng: Random) -> None:
        self.sizes: dict[str, int] = {}
        self.peak_bytes = 0
        self._rng = rng

    async def _takes_time(self) -> None:
        for _ in range(self._rng.randrange(6)):
            await asyncio.sleep(0)

    async def put(self, path: str, content: bytes) -> None:
        await self._takes_time()
        self.sizes[path] = len(content)
        self.peak_bytes = max(self.peak_bytes, sum(self.sizes.values()))
        await self._takes_time()

    async def list(self, folder: str) -> list[StoredObject]:
        await self._takes_time()
        found = [StoredObject(path, size, 0.0) for path, size in sorted(self.sizes.items())]
        await self._takes_time()
        return found

    async def delete(self, path: str) -> None:
        await self._takes_time()
        self.sizes.pop(path, None)


@given(st.integers(1, 6), st.integers(100, 1000), st.integers(0, 2**32))
def test_agents_exceed_the_bound_by_a_hundredth_or_one_response_each(agents: int, responses: int, seed: int) -> None:
    # No generator of hypothesis, whose end of an example would leave coroutines that nothing awaits.
    rng = Random(seed)
    storage, fleet = SlowStorage(rng), replace(policy(), job_stores=(job_store(Path("/unused")),))
    opened = SimpleNamespace(files=SimpleNamespace(storage=storage))
    stores: Any = SimpleNamespace(region="eu-de", opened=lambda: opened)
    governed = SimpleNamespace(permitted=SimpleNamespace(regions=frozenset({"eu-de"})))
    context: Any = SimpleNamespace(policy=fleet, residency=governed)
    writers = [StoredBodies(stores, Random(1)) for _ in range(agents)]

    async def write_all() -> None:
        writes = []
        for number in range(responses):
            body = bytes(rng.randint(1, MAX_BYTES))
            result = CachedResult(number.to_bytes(4), 0.0, float(number), b"", b'"tag"', "eu-de", None, body)
            writes.append(rng.choice(writers).write(context, CACHE, result))
            if rng.random() < 0.05:
                await asyncio.gather(*writes)
                writes.clear()
        await asyncio.gather(*writes)

    asyncio.run(write_all())
    # One response is larger than a hundredth.
    assert 0 < storage.peak_bytes <= BOUND_BYTES + (agents - 1) * MAX_BYTES
