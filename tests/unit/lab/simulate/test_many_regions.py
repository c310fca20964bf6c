"""Many regions on one clock: requests avoid failed regions and slow or cold engines; runs are reproducible."""

from __future__ import annotations

from pathlib import Path

import msgspec

from lab.commands.simulate_world_command import simulate_world
from lab.simulate.many_regions import Faults, World, WorldConfig

SMALL = WorldConfig(regions=6, endpoints=6, rate_per_s=40.0, seconds=10.0, jurisdiction=3, report_age_s=5.0)


def run(faults: Faults) -> World:
    world = World(msgspec.structs.replace(SMALL, faults=faults))
    world.run()
    return world


def test_every_request_is_answered_and_the_same_seed_gives_the_same_run() -> None:
    first, second = run(Faults()).result, run(Faults()).result
    assert first.requests > 300
    assert (first.unanswered, first.broken, first.away) == (0, 0, 0)
    assert first.plans == 1
    assert (second.events, second.e2e_p99_s) == (first.events, first.e2e_p99_s)


def test_after_the_loss_of_a_region_its_jurisdiction_serves() -> None:
    world = run(Faults(lost_regions=1))
    result, half_s = world.result, SMALL.seconds / 2
    assert result.rerouted > 10
    assert result.unanswered == 0
    late = {
        site.name: sum(served.request.at_s > half_s for served in site.region.served) for site in world.sites.values()
    }
    assert late["region-0000"] == 0
    others = late["region-0003"] + late["region-0004"] + late["region-0005"]
    assert late["region-0001"] + late["region-0002"] > 0.75 * others, "the other two serve its demand"


def test_an_engine_that_loads_receives_nothing_and_one_that_became_slow_receives_less() -> None:
    world = run(Faults(slow_engines=1, cold_engines=1))
    half_s = SMALL.seconds / 2
    served = [served for site in world.sites.values() for served in site.region.served]
    early = [answer.engine for answer in served if answer.request.at_s < half_s]
    late = [answer.engine for answer in served if answer.request.at_s > half_s + 2.0]
    assert early.count(1) == 0
    assert late.count(1) > 0
    assert late.count(0) / len(late) < 0.5 * early.count(0) / len(early)


def test_the_command_writes_events_and_memory(tmp_path: Path) -> None:
    out = tmp_path / "world.json"
    simulate_world(2, 3, 1, 2, 4.0, 3.0, 1.0, 0, 0, 0, 1, out)
    report = msgspec.json.decode(out.read_bytes())
    assert report["result"]["events"] > 0
    assert report["peak_memory_mb"] > 0
