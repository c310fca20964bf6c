"""A light load on a fleet that is kept running, so that the operators' page and the dashboards show traffic."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from lab.demo.clients import entries_of
from lab.demo.demo_workload import Sender, planned_request, tenants_of
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, Topology
from lab.replay.replay_workload import PlannedRequest
from lab.replay.replayer import Replayer
from lab.traces.trace import TraceRequest

RATE_PER_S = 3.0
"""Mean rate (requests/s): a third of the story's, so that the machine has room for what people try."""

ROUND_S = 60.0
"""Length (s) of the workload that is made at a time."""

PROMPT_TOKENS, OUTPUT_TOKENS = 400, 60
DRAIN_S = 30.0
"""Time (s) allowed for the last requests of a round."""


async def run_light_load(planet: Planet, rng: Random) -> None:
    """Send chats from all client sites until cancelled. Failures are not reported: people try faults on this fleet."""
    entries, number = entries_of(planet.topology, planet.ports), 0
    while True:
        number += 1
        await Replayer(list(light_workload(planet.topology, number, rng)), entries).run(DRAIN_S)


def light_workload(topology: Topology, number: int, rng: Random) -> Iterator[PlannedRequest]:
    """Yield the requests of one round, at random times of a Poisson process, by the shares of the client sites."""
    at_s = rng.expovariate(RATE_PER_S)
    while at_s < ROUND_S:
        site = rng.choices(topology.sites, [site.share for site in topology.sites])[0]
        tenants = tenants_of(site.country)
        tenant = rng.choices(list(tenants), list(tenants.values()))[0]
        name = f"light-{number}-{at_s * 1000:.0f}"
        lengths = TraceRequest(0.0, PROMPT_TOKENS, OUTPUT_TOKENS)
        yield planned_request(name, at_s, Sender(site, tenant, CHAT_8B), lengths, topology.region_names, rng)
        at_s += rng.expovariate(RATE_PER_S)
