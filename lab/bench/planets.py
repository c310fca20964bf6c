"""Generated fleets of a given size: regions around the world, nested and overlapping residency, uneven demand.

A fleet is generated from a seed, so that every run plans for the same fleet.
"""

from __future__ import annotations

from random import Random

import msgspec

from penstock.fleet.report import AgentReport, DemandReport, GroupReport, PoolReport
from penstock.fleet.snapshot import HeldReport, Snapshot
from penstock.health.region_health import RegionHealth, RegionState
from penstock.planning.linear_program.distances import Distances
from penstock.policy.kinds.models import Model
from penstock.policy.kinds.regions import Region
from penstock.policy.policy import Policy
from penstock.policy.residency import residency_class

HUBS = (
    (50.1, 8.7),
    (40.4, -3.7),
    (51.5, -0.1),
    (38.9, -77.0),
    (37.4, -122.1),
    (35.7, 139.7),
    (1.3, 103.8),
    (-33.9, 151.2),
)
"""Latitude and longitude (degrees) of the cities that regions are placed around; the first three form one bloc."""

SERVICE_S = 5.0
"""Mean time (s) that a request occupies a slot."""

UTILISATION = 0.62
"""Share of all slots that the mean demand occupies: some regions overflow, most can take over a neighbour's load."""


MISJUDGED = 0.4
"""Deviation (sigma of a lognormal) of the size of a pool from the nearby demand."""


class Size(msgspec.Struct, frozen=True):
    """Size of a fleet."""

    origins: int
    """Number of regions that receive client traffic."""
    servers: int
    """Number of regions with GPUs."""
    classes: int
    """Number of traffic classes (model, residency class); every origin has demand in every class."""
    models: int
    group_models: int = 1
    """Number of models that share the slots of their endpoints, as on a multi-model server; 1 for no sharing."""

    @property
    def name(self) -> str:
        """Origins x serving regions x traffic classes, and the models of a capacity group."""
        shared = f", {self.group_models} models a group" if self.group_models > 1 else ""
        return f"{self.origins}x{self.servers}x{self.classes}{shared}"


class Planet(msgspec.Struct):
    """A policy and the reports of its regions."""

    policy: Policy
    rates: dict[tuple[str, str, tuple[str, ...]], float]
    """Requests per second by (origin, model, permitted regions)."""
    slots: dict[tuple[str, str], int]
    """Slots by (region, model). The models of a capacity group share the sum of their slots."""
    groups: tuple[tuple[str, ...], ...] = ()
    """The models of each capacity group of several models; the same in every region."""

    def snapshot(self, rng: Random, jitter: float, *, failed: str | None = None) -> Snapshot:
        """Return the current reports: demand and service times vary by up to the share `jitter`."""
        names = {regions: residency_class(frozenset(regions)).name for regions in {key[2] for key in self.rates}}
        demand: dict[str, list[DemandReport]] = {}
        for (origin, model, regions), rate in self.rates.items():
            demand.setdefault(origin, []).append(
                DemandReport(model, names[regions], regions, rate * rng.uniform(1.0 - jitter, 1.0 + jitter))
            )
        agents, health = {}, {}
        for region in self.policy.regions:
            sums = {models: sum(self.slots.get((region, model), 0) for model in models) for models in self.groups}
            of_groups = {models: together for models, together in sums.items() if together}
            shared = {model: together for models, together in of_groups.items() for model in models}
            pools = tuple(
                PoolReport(model, slots, slots, slots, 0, SERVICE_S * rng.uniform(1.0 - jitter, 1.0 + jitter))
                for model in self.policy.models
                if (slots := shared.get(model) or self.slots.get((region, model)))
            )
            groups = tuple(
                GroupReport(models, together, together, together, 0) for models, together in of_groups.items()
            )
            report = AgentReport(region, "1", 1, 1, 0.0, pools, tuple(demand.get(region, ())), groups=groups)
            agents[region, "1"] = HeldReport(report, 0.0)
            health[region] = RegionHealth(RegionState.FAILED if region == failed else RegionState.HEALTHY)
        return Snapshot(agents, health)


def planet(size: Size, seed: int) -> Planet:
    """Generate a planet of the given size."""
    rng = Random(seed)
    names = [f"r{number:04d}" for number in range(size.origins)]
    hub_of = {name: rng.randrange(len(HUBS)) for name in names}
    regions = {name: _region(name, *HUBS[hub_of[name]], rng) for name in names}
    servers = sorted(rng.sample(names, size.servers))
    sets = _residency(servers, hub_of)
    models = {f"m{number:02d}": Model(f"m{number:02d}", SERVICE_S) for number in range(size.models)}
    popularity = {name: rng.lognormvariate(0.0, 0.8) for name in names}
    rates = {
        (origin, f"m{at % size.models:02d}", sets[at // size.models % len(sets)]): 2.0
        * popularity[origin]
        * rng.lognormvariate(0.0, 0.5)
        for origin in names
        for at in range(size.classes)
    }
    policy = Policy(regions=regions, models=models, tenants={}, residency=())
    names_of_models = sorted(models)
    groups = (
        tuple(names_of_models[first : first + size.group_models]) for first in range(0, size.models, size.group_models)
    )
    coupled = tuple(group for group in groups if len(group) > 1)
    return Planet(policy, rates, _capacity(policy, rates, servers, rng), coupled)


def _capacity(
    policy: Policy, rates: dict[tuple[str, str, tuple[str, ...]], float], servers: list[str], rng: Random
) -> dict[tuple[str, str], int]:
    """Slots in proportion to the nearby demand, with a random deviation as from long-term capacity planning."""
    weight: dict[tuple[str, str], float] = {}
    total: dict[str, float] = {}
    distances = Distances(policy)
    sets = {permitted: frozenset(permitted) for _, _, permitted in rates}
    for (origin, model, permitted), rate in rates.items():
        home = distances.nearest_first(origin, sets[permitted])[0]
        weight[home, model] = weight.get((home, model), 0.0) + rate
        total[model] = total.get(model, 0.0) + rate
    for server in servers:
        for model, rate in sorted(total.items()):
            floor = 0.2 * rate / len(servers)
            weight[server, model] = max(floor, weight.get((server, model), 0.0)) * rng.lognormvariate(0.0, MISJUDGED)
    sums = dict.fromkeys(total, 0.0)
    for (_, model), value in weight.items():
        sums[model] += value
    return {
        key: max(4, round(SERVICE_S * total[key[1]] / UTILISATION * value / sums[key[1]]))
        for key, value in weight.items()
    }


def _region(name: str, latitude_deg: float, longitude_deg: float, rng: Random) -> Region:
    return Region(
        name,
        "DE",
        latitude_deg + rng.uniform(-8.0, 8.0),
        longitude_deg + rng.uniform(-8.0, 8.0),
        cost_per_gpu_hour=rng.choice((1.0, 1.2, 1.5)),
    )


def _residency(servers: list[str], hub_of: dict[str, int]) -> list[tuple[str, ...]]:
    """Sets of permitted regions: the world; a bloc; the world without a bloc; a smaller bloc in the bloc; an
    overlapping bloc; then every run of neighbouring cities, which overlap in every way."""
    hubs = [set(range(len(HUBS))), {0, 1, 2}, {0, 1, 2, 3, 4, 7}, {0, 1}, {2, 3, 4}]
    for length in range(1, len(HUBS)):
        hubs += [{(first + step) % len(HUBS) for step in range(length)} for first in range(len(HUBS))]
    found = [tuple(name for name in servers if hub_of[name] in members) for members in hubs]
    return list(dict.fromkeys(permitted for permitted in found if permitted))
