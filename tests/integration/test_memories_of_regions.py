"""Two regions, each an agent process with one memory, need it for the same model at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
from msgspec.structs import replace

from adapters.servers.etcd import EtcdServer
from penstock.policy.kinds.models import Model, Scaling
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from tests.integration.test_model_memory import OTHER, OllamaHost, chat
from tests.support.agent_processes import AgentProcess, publish
from tests.support.planet import MODEL, policy
from tests.support.small_http import Headers
from tests.support.wait import PATIENCE_S, until_async

REGIONS = ("eu-de", "eu-es")


class WatchedHost(OllamaHost):
    """A host that records after each request what all hosts have loaded."""

    def __init__(self, hosts: list[WatchedHost], seen: set[frozenset[str]]) -> None:
        super().__init__()
        self.loaded = [MODEL]
        self._hosts, self._seen = hosts, seen

    async def _answer(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        answer = await super()._answer(method, target, headers, body)
        self._seen.add(frozenset(model for host in self._hosts for model in host.loaded))
        return answer


def agent_of(region: str, directory: Path, etcd: EtcdServer, host: OllamaHost) -> AgentProcess:
    file = directory / f"{region}.yaml"
    entry = {"name": "ollama", "url": host.url, "models": [MODEL, OTHER], "slots": 4, "engine": "ollama"}
    file.write_bytes(msgspec.yaml.encode([{**entry, "memory_gb": 24}]))
    where = directory / region
    return AgentProcess("a", where, region=region, etcd_endpoint=etcd.endpoint, redis_url=None, endpoints_file=file)


@asynccontextmanager
async def two_regions(directory: Path, etcd: EtcdServer, hosts: Sequence[OllamaHost]) -> AsyncIterator[list[str]]:
    """Run an agent for each region and its host, which may put a model to sleep 0.1 s after its use; yields where chats
    enter."""
    on_demand = OnDemand(WakeMethod.OLLAMA, idle_s=3600.0, evict_after_s=0.1, memory_gb=18.0)
    known = {name: Model(name, scaling=Scaling(2.0), on_demand=on_demand) for name in (MODEL, OTHER)}
    async with hosts[0], hosts[1]:
        await publish(etcd, replace(policy(), models=known, anonymous_tenant="open"))
        agents = [agent_of(region, directory, etcd, host) for region, host in zip(REGIONS, hosts, strict=True)]
        try:
            for agent in agents:
                agent.start()
            for agent in agents:
                await asyncio.to_thread(agent.wait_ready, PATIENCE_S)
            yield [f"http://{agent.faces()['traffic']}/v1/chat/completions" for agent in agents]
        finally:
            for agent in agents:
                await asyncio.to_thread(agent.kill)


async def test_the_last_copy_stays_in_one_of_two_regions_that_load_the_same_model(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    hosts: list[WatchedHost] = []
    seen = set[frozenset[str]]()
    hosts += [WatchedHost(hosts, seen) for _ in REGIONS]
    async with two_regions(tmp_path, own_etcd, hosts) as entries, httpx.AsyncClient(timeout=PATIENCE_S) as http:
        # The first requests arrive before the second probe of an endpoint.
        async def refusals(model: str) -> set[str]:
            """Of requests to both regions at once."""
            found = await asyncio.gather(*(http.post(entry, content=chat(model)) for entry in entries * 3))
            return {response.text for response in found if response.status_code != 200}

        async def is_served() -> bool:
            return not await refusals(OTHER)

        # A region that keeps the last copy of the other model serves this one as soon as the other region does.
        await until_async(is_served)
        for model in (MODEL, OTHER) * 5:
            assert await refusals(model) == set()
    assert sorted(host.orders for host in hosts) == [[], [("unload", MODEL), ("load", OTHER)]]
    assert all(MODEL in loaded for loaded in seen)


async def test_a_request_waits_for_another_region_while_this_one_keeps_the_last_copy_of_another_model(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    keeps, loads = OllamaHost(), OllamaHost()
    keeps.loaded, loads.loaded = [MODEL], [MODEL]
    async with (
        two_regions(tmp_path, own_etcd, [keeps, loads]) as entries,
        httpx.AsyncClient(timeout=PATIENCE_S) as http,
    ):

        async def sees_both() -> bool:
            return (await http.post(entries[1], content=chat(MODEL))).status_code == 200

        await until_async(sees_both)
        found = await http.post(entries[0], content=chat(OTHER))
        assert (found.status_code, found.headers.get("x-penstock-region")) == (200, REGIONS[1]), found.text
    assert (keeps.orders, loads.orders) == ([], [("unload", MODEL), ("load", OTHER)])
