"""The light load on a fleet that is kept, and the tour that is printed for it."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from lab.demo.kept_fleet.light_load import RATE_PER_S, ROUND_S, light_workload
from lab.demo.kept_fleet.listing import print_listing
from lab.geoip import SITES
from lab.planet.topology import demo_planet


def test_a_round_has_chats_of_all_sites_within_its_time() -> None:
    topology = demo_planet(SITES)
    planned = list(light_workload(topology, 1, Random(1)))
    assert 0.7 < len(planned) / (RATE_PER_S * ROUND_S) < 1.3
    assert [each.at_s for each in planned] == sorted(each.at_s for each in planned)
    assert planned[-1].at_s < ROUND_S
    assert len({each.id for each in planned}) == len(planned)
    assert len({each.site for each in planned}) > len(SITES) / 2
    assert all(each.required_regions for each in planned)


def test_the_listing_has_keys_for_metrics_and_five_things_to_try(tmp_path: Path) -> None:
    topology = demo_planet(SITES)
    ports: Any = _Ports()
    planet: Any = SimpleNamespace(
        topology=topology, ports=ports, directory=tmp_path, policy_dir=tmp_path / "policy", logs=tmp_path / "logs"
    )
    console = Console(record=True, width=400, file=(tmp_path / "out").open("w"))
    print_listing(planet, console)
    text = console.export_text()
    assert "key for agents' metrics" in text
    assert [f"  {number}. " in text for number in range(1, 7)] == [True] * 5 + [False]
    for command in ("penstock explain", "--dry-run", "/faults", "policy verify", "/metrics", "status --watch"):
        assert command in text


class _Ports(dict[str, int]):
    """A port for every name."""

    def __missing__(self, name: str) -> int:
        return 20_000 + len(name)
