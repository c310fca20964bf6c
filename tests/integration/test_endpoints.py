import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from small_http import Headers, SmallHttp, until

from penstock.policy import Model, Policy
from penstock.who import choose_endpoint
from regional_agent.carry.upstream import UpstreamPool
from regional_agent.endpoint import UNTOLD_SERVICE_S, Endpoint
from regional_agent.endpoint_file import BadEndpointFile
from regional_agent.endpoints import Endpoints


class Engine(SmallHttp):
    """An engine of which only /health is real."""

    def __init__(self) -> None:
        self.status = 200
        super().__init__(self._health)

    def _health(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        assert (method, target) == (b"GET", b"/health")
        return self.status, b""


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    made = [Engine(), Engine()]
    for engine in made:
        await engine.start()
    yield made
    for engine in made:
        await engine.stop()


@pytest.fixture
async def connections() -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool()
    yield pool
    pool.close()


def entry(name: str, url: str, slots: int = 4, queue: int = 2, models: str = "m") -> str:
    return f"- {{name: {name}, url: '{url}', models: [{models}], slots: {slots}, queue: {queue}}}\n"


@pytest.fixture
async def endpoints(engines: list[Engine], connections: UpstreamPool, tmp_path: Path) -> AsyncIterator[Endpoints]:
    file = tmp_path / "endpoints.yaml"
    file.write_text("".join(entry(f"gpu-{n}", engine.url) for n, engine in enumerate(engines)))
    made = Endpoints(file, connections, Random(1))
    yield made
    await made.stop()


def named(endpoints: Endpoints, name: str) -> Endpoint:
    return next(one for one in endpoints.every() if one.name == name)


async def test_becomes_ready_by_probes_over_kept_connections(endpoints: Endpoints, engines: list[Engine]) -> None:
    pool = endpoints.pool("m")
    assert (pool.ready, pool.slots, [view.ready for view in pool.views]) == (0, 0, [False, False])
    endpoints.start()
    await until(lambda: pool.ready == 2)
    assert pool.slots == 8
    assert [view is one.view for view, one in zip(pool.views, pool.endpoints, strict=True)] == [True, True]
    await until(lambda: min(engine.requests for engine in engines) >= 3)
    assert [engine.connections for engine in engines] == [1, 1]
    assert endpoints.pool("other").ready == 0


async def test_falls_when_it_says_so_or_is_gone_and_rises_again(endpoints: Endpoints, engines: list[Engine]) -> None:
    endpoints.start()
    pool = endpoints.pool("m")
    await until(lambda: pool.ready == 2)
    engines[0].status = 503
    await until(lambda: not pool.views[0].ready)
    assert (pool.ready, pool.slots) == (1, 4)
    await engines[1].stop()
    await until(lambda: pool.ready == 0)
    engines[0].status = 200
    await engines[1].start()
    await until(lambda: pool.ready == 2)


async def test_a_request_that_cannot_connect_takes_it_out_at_once_until_a_good_probe(
    endpoints: Endpoints, engines: list[Engine]
) -> None:
    endpoints.start()
    pool = endpoints.pool("m")
    await until(lambda: pool.ready == 2)
    endpoints.failed(pool.endpoints[0])
    assert (pool.ready, pool.views[0].ready) == (1, False)
    await until(lambda: pool.ready == 2)


async def test_a_silent_engine_under_load_is_not_failed_by_one_late_probe(
    endpoints: Endpoints, engines: list[Engine]
) -> None:
    endpoints.start()
    pool = endpoints.pool("m")
    await until(lambda: pool.ready == 2)
    engines[0].silent = True
    engines[0].asked.clear()
    await engines[0].asked.wait()
    await until(lambda: pool.endpoints[0].health.doubt > 0)
    assert pool.views[0].ready


async def test_pool_numbers_follow_reservations_and_readiness(endpoints: Endpoints, engines: list[Engine]) -> None:
    endpoints.start()
    pool = endpoints.pool("m")
    await until(lambda: pool.ready == 2)
    first, second = pool.endpoints
    first.take()
    first.take()
    second.take()
    assert (pool.in_flight, first.view.in_flight, second.view.in_flight) == (3, 2, 1)
    endpoints.heard_of_others({"gpu-0": 3, "gpu-9": 5})
    assert (pool.in_flight, first.view.in_flight) == (6, 5)
    endpoints.failed(first)
    assert pool.in_flight == 1
    first.give_back()
    await until(lambda: pool.ready == 2)
    assert (pool.in_flight, first.view.in_flight) == (5, 4)
    endpoints.heard_of_others({})
    for one, times in ((first, 1), (second, 1)):
        for _ in range(times):
            one.give_back()
    assert (pool.in_flight, first.view.in_flight, second.view.in_flight) == (0, 0, 0)


async def test_service_time_starts_at_what_policy_expects(endpoints: Endpoints) -> None:
    endpoints.start()
    pool = endpoints.pool("m")
    await until(lambda: pool.ready == 2)
    assert pool.service_s == UNTOLD_SERVICE_S
    endpoints.use_priors(Policy(regions={}, models={"m": Model("m", 2.0)}, tenants={}, residency=()))
    assert pool.service_s == 2.0
    for _ in range(200):
        endpoints.completed(pool.endpoints[0], 0.5)
    await until(lambda: abs(pool.service_s - 0.5) < 0.01)


async def test_the_file_is_read_again_when_it_changes(
    endpoints: Endpoints, engines: list[Engine], tmp_path: Path
) -> None:
    endpoints.start()
    await until(lambda: endpoints.pool("m").ready == 2)
    kept, gone = endpoints.pool("m").endpoints
    kept.take()
    gone.take()
    file = tmp_path / "endpoints.yaml"
    file.write_text(entry("gpu-0", engines[0].url, slots=9, models="m, n") + entry("gpu-2", engines[1].url))
    await until(lambda: endpoints.pool("n").ready == 1 and endpoints.pool("m").ready == 2)
    assert endpoints.pool("m").endpoints[0] is kept
    assert (kept.view.slots, kept.view.limit, kept.view.in_flight) == (9, 11, 1)
    assert gone.view.draining
    assert gone in endpoints.every()
    assert choose_endpoint([gone.view], Random(1)).index is None
    gone.give_back()
    await until(lambda: gone not in endpoints.every())
    assert [one.name for one in endpoints.every()] == ["gpu-0", "gpu-2"]


async def test_a_bad_or_missing_file_changes_nothing_and_is_told(
    endpoints: Endpoints, engines: list[Engine], tmp_path: Path
) -> None:
    endpoints.start()
    pool = endpoints.pool("m")
    await until(lambda: pool.ready == 2)
    file = tmp_path / "endpoints.yaml"
    good = file.read_text()
    file.write_text(entry("gpu-0", engines[0].url, slots=0))
    await until(lambda: endpoints.problem is not None)
    assert endpoints.problem is not None
    assert "slots" in endpoints.problem
    assert endpoints.pool("m") is pool
    assert pool.slots == 8
    aside = file.rename(tmp_path / "aside.yaml")
    await until(lambda: "cannot read" in (endpoints.problem or ""))
    assert pool.slots == 8
    aside.write_text(good)
    aside.rename(file)
    await until(lambda: endpoints.problem is None)
    assert endpoints.pool("m").endpoints == pool.endpoints


async def test_a_server_that_moved_is_another_server(
    endpoints: Endpoints, engines: list[Engine], tmp_path: Path
) -> None:
    endpoints.start()
    await until(lambda: endpoints.pool("m").ready == 2)
    before = named(endpoints, "gpu-0")
    (tmp_path / "endpoints.yaml").write_text(entry("gpu-0", engines[1].url))
    await until(lambda: endpoints.pool("m").endpoints != [] and len(endpoints.pool("m").endpoints) == 1)
    assert named(endpoints, "gpu-0") is not before
    await until(lambda: endpoints.pool("m").ready == 1)


async def test_an_agent_does_not_start_without_a_file(connections: UpstreamPool, tmp_path: Path) -> None:
    with pytest.raises(BadEndpointFile, match="cannot read"):
        Endpoints(tmp_path / "none.yaml", connections, Random(1))


async def test_stops_cleanly(endpoints: Endpoints, engines: list[Engine]) -> None:
    endpoints.start()
    await until(lambda: endpoints.pool("m").ready == 2)
    before = asyncio.all_tasks()
    await endpoints.stop()
    assert not [task for task in before & asyncio.all_tasks() if "probe" in task.get_name() or "end" in task.get_name()]
