from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from penstock.fleet.shared_counts import FRESH_S, LEASE_S
from penstock.wire.peer_keys import BadSignature
from penstock.wire.region_key import KEY_BYTES, RegionKey, RegionKeys
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.shared_load.published_load import PublishedLoad, QueueSummary, open_load, seal_load
from regional_agent.shared_load.shared_load import SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool

LIMIT = 6
KEY = RegionKey(RegionKeys(bytes(KEY_BYTES)), "eu")


class View:
    """The shared load of an agent whose directory contains `known`."""

    def __init__(self, directory: Path) -> None:
        file = directory / "endpoints.yaml"
        lines = [
            f"- {{name: gpu-{n}, url: 'http://127.0.0.1:{n + 1}', models: [m], slots: 4, queue: 2}}\n" for n in (0, 1)
        ]
        file.write_text("".join(lines))
        self.now = 100.0
        self.known = {"a", "b"}
        self.endpoints = EndpointSet(EndpointSettings(file), UpstreamPool(), Random(1))
        self.load = SharedLoad(self.endpoints, shared=True, is_known=self.known.__contains__, clock=lambda: self.now)

    def read(self, *published: PublishedLoad) -> bool:
        return self.load.receive(published, self.now)

    def in_flight(self) -> list[int]:
        return [endpoint.view.in_flight for endpoint in self.endpoints.every()]


@pytest.fixture
def view(tmp_path: Path) -> View:
    return View(tmp_path)


def load(agent: str, number: int, requests: int, epoch: int = 1) -> PublishedLoad:
    return PublishedLoad(agent, epoch, number, {"gpu-0": (requests, 0, 0)})


@pytest.mark.parametrize("invalid", ["[-1,0,0]", "[1,1e99,0]", "[1,2]", '"x"', "[1,0,100000000000000]"])
def test_only_the_invalid_entry_of_a_load_is_dropped(invalid: str) -> None:
    queues = '{"bad":[-1,0,0,1],"m":[3,-1,250,7]}'
    loads = f'{{"gpu-0":{invalid},"gpu-1":[3,0,0]}}'
    work = f'{{"bad":{invalid},"m":[[0,"t",5]]}}'
    asleep = f'{{"gpu-0":{invalid},"gpu-1":["m"]}}'
    encoded = f'{{"agent":"a","epoch":1,"number":2,"loads":{loads},"waiting":{queues},"work":{work},"asleep":{asleep}}}'
    assert open_load(KEY.seal(encoded.encode()), KEY) == PublishedLoad(
        "a",
        1,
        2,
        {"gpu-1": (3, 0, 0)},
        {"m": QueueSummary(3, -1, 250, 7)},
        {"m": [(0, "t", 5)]},
        asleep={"gpu-1": ["m"]},
    )


def test_what_another_agent_lets_sleep_receives_no_requests_until_a_probe_has_read_that_it_sleeps(view: View) -> None:
    (endpoint, other), (model,) = view.endpoints.every(), next(view.endpoints.every()).spec.models
    endpoint.set_loaded_models(frozenset((model,)))

    def publish(number: int, *asleep: str) -> None:
        view.read(PublishedLoad("a", 1, number, asleep={"gpu-0": list(asleep)}))

    publish(1, model)
    assert (endpoint.models, other.models) == ((), (model,))
    publish(2)
    assert endpoint.models == (model,), "it stays awake"
    publish(3, model)
    endpoint.set_loaded_models(frozenset((model,)))
    assert endpoint.models == (), "it does not sleep yet"
    endpoint.set_loaded_models(frozenset())
    endpoint.set_loaded_models(frozenset((model,)))
    publish(4, model)
    assert endpoint.models == (model,), "it has woken since"
    publish(5)
    publish(6, model)
    assert endpoint.models == ()
    view.now += LEASE_S
    view.load.fade()
    assert endpoint.models == (model,), "that agent may have died"


@pytest.mark.parametrize("encoded", [b"", b"\xff", b"[]", b'{"agent":"a","epoch":1,"number":-1}', b'{"epoch":1}'])
def test_a_load_without_a_valid_part_is_rejected(encoded: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        open_load(KEY.seal(encoded), KEY)


def test_a_load_is_accepted_from_agents_of_the_region_only() -> None:
    published = load("a", 1, 3)
    sealed = seal_load(published, KEY)
    assert open_load(sealed, KEY) == published
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    shorter = sealed[:-1]
    of_a_stranger = seal_load(published, RegionKey(RegionKeys(b"s" * KEY_BYTES), "eu"))
    of_another_region = seal_load(published, RegionKey(RegionKeys(bytes(KEY_BYTES)), "us"))
    for rejected in (changed, shorter, of_a_stranger, of_another_region, b"", sealed[:16], sealed[16:]):
        with pytest.raises(BadSignature):
            open_load(rejected, KEY)


def test_the_other_agents_requests_count_up_to_the_limit_of_the_endpoint(view: View) -> None:
    view.read(load("a", 1, 900_000), load("b", 1, 900_000))
    assert view.in_flight() == [LIMIT, 0]
    view.read(load("a", 2, 2), load("b", 2, 1))
    assert view.in_flight() == [3, 0]


def test_an_agent_outside_the_directory_does_not_count(view: View) -> None:
    view.read(load("a", 1, 1), load("stranger", 1, 3))
    assert view.in_flight() == [1, 0]
    view.known.add("stranger")
    view.read(load("stranger", 2, 3))
    assert view.in_flight() == [4, 0]


def test_an_agent_without_registration_counts_as_long_as_it_publishes(view: View) -> None:
    """An agent that cannot reach etcd still serves."""
    view.read(load("a", 1, 3))
    view.known.clear()
    for number in range(2, 10):
        view.now += 0.9 * LEASE_S
        view.read(load("a", number, 3))
        assert view.in_flight() == [3, 0]
    view.now += LEASE_S
    view.load.fade()
    view.read(load("a", 10, 3))
    assert view.in_flight() == [0, 0]


def test_the_head_of_a_queue_is_as_old_as_the_report_that_was_delayed_least_says(view: View) -> None:
    def read(number: int, waited_ms: int, which: int = 7) -> float:
        view.read(PublishedLoad("a", 1, number, waiting={"m": QueueSummary(1, 0, waited_ms, which)}))
        [queue] = view.load.work.remote_queues["m"]
        return view.now - queue.since

    assert read(1, 250) == pytest.approx(0.25)
    view.now += 0.5
    assert read(1, 250) == pytest.approx(0.75), "a report that is read again is as old as before"
    assert read(2, 500) == pytest.approx(0.75), "a delayed report makes no head younger"
    assert read(3, 900) == pytest.approx(0.9)
    assert read(4, 100, 8) == pytest.approx(0.1), "another request is at the head"


def work_of(agent: str, number: int, **totals_us: int) -> PublishedLoad:
    return PublishedLoad(agent, 1, number, work={"m": [(0, tenant, total) for tenant, total in totals_us.items()]})


def test_the_work_of_tenants_at_the_other_agents_counts_here(view: View) -> None:
    counters = view.load.work.of("m").of(0)
    counters.join("waits", 1.0)
    view.read(work_of("a", 1, x=900_000_000), work_of("b", 1), work_of("stranger", 1))
    assert counters.received_s("x") == 0.0, "of what happened before this agent first read the load, nothing counts"
    view.read(work_of("a", 2, x=902_000_000), work_of("b", 2, x=1_000_000), work_of("stranger", 2, x=5_000_000))
    assert counters.received_s("x") == 3.0
    view.read(work_of("a", 3, x=901_000_000), work_of("a", 2, x=0))
    assert counters.received_s("x") == 2.0, "a correction counts, and an old load does not"
    view.now += LEASE_S
    view.load.fade()
    view.read(work_of("a", 4, x=990_000_000))
    assert counters.received_s("x") == 2.0, "nothing is known of the time in which the agent was silent"


def test_an_entry_that_is_written_again_counts_for_nothing(view: View) -> None:
    busy, idle = load("a", 1, 4), load("a", 2, 0)
    view.read(busy)
    view.read(idle)
    view.read(busy)
    assert view.in_flight() == [0, 0]
    for _ in range(40):
        view.now += 0.1
        view.read(idle)
        view.load.fade()
    assert not view.load.is_live(idle)
    view.read(busy)
    assert view.in_flight() == [0, 0]


def test_an_agent_that_is_missing_loses_weight_gradually(view: View) -> None:
    """Redis may evict keys, and has none after a failover or a restart."""
    view.read(load("a", 1, 6))
    seen = []
    for step in range(25):
        view.now = 100.0 + step * 0.1
        view.read()
        view.load.fade()
        seen.append(view.in_flight()[0])
    fresh = int(FRESH_S / 0.1)
    assert seen[:fresh] == [6] * fresh
    assert seen == sorted(seen, reverse=True)
    assert set(seen) == set(range(7))
    assert seen[-1] == 0
    view.read(load("a", 2, 5))
    assert view.in_flight() == [5, 0]


def test_a_start_that_finishes_its_requests_counts_beside_its_successor(view: View) -> None:
    view.read(load("a", 9, 1, epoch=1), load("a", 1, 2, epoch=2))
    assert view.in_flight() == [3, 0]


def test_what_does_not_change_is_not_applied_again(view: View) -> None:
    assert view.read(load("a", 1, 2))
    assert not view.read(load("a", 2, 2))
    assert not view.load.fade()
    assert view.read(load("a", 3, 1))
