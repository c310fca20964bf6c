"""The image jobs of the demo: a constant rate from all sites, under the same residency rules as chats."""

from __future__ import annotations

from random import Random

import msgspec

from lab.demo.demo_workload import Ask, Sender, home_of, planned_request, tenants_of
from lab.demo.scenario import Scenario
from lab.planet.topology import IMAGE_MODEL, Topology
from lab.replay.replay_workload import ImageSize
from lab.traces.trace import TraceRequest
from lab.wan.matrix import RttMatrix

IMAGE_RATE_PER_S = 1.5
"""Mean rate (requests/s) of the whole fleet: about a third of the capacity of the image engines, so that the remaining
EU regions can serve the EU's jobs while an EU region is down."""

SIDES = (512, 768, 1024)
STEPS = (8, 12, 20, 30)
"""Sides (pixels) and steps, selected independently at random: jobs of 2 to 31 megapixel steps."""

PROMPT_TOKENS = 8


def plan_image_jobs(topology: Topology, scenario: Scenario, matrix: RttMatrix, rng: Random) -> list[Ask]:
    """Return the image jobs of the scenario: random arrivals; sites and tenants are selected by their shares.

    Args:
        topology: the sites, and the regions that generate images.
        scenario: defines the duration; its surge does not affect image jobs.
        matrix: round trips between regions.
        rng: source of all randomness.
    """
    shares = [site.share for site in topology.sites]
    asks: list[Ask] = []
    jobs = round(IMAGE_RATE_PER_S * scenario.duration_s)
    for at_s in sorted(rng.uniform(0.0, scenario.duration_s) for _ in range(jobs)):
        site = rng.choices(topology.sites, shares)[0]
        tenants = tenants_of(site.country)
        tenant = rng.choices(list(tenants), list(tenants.values()))[0]
        sender, lengths = Sender(site, tenant, IMAGE_MODEL), TraceRequest(0.0, PROMPT_TOKENS, 1)
        planned = planned_request(f"image-{len(asks):05d}", at_s, sender, lengths, topology.region_names, rng)
        image = ImageSize(rng.choice(SIDES), rng.choice(SIDES), rng.choice(STEPS))
        home = home_of(site, planned.required_regions, IMAGE_MODEL, topology, matrix)
        asks.append(Ask(msgspec.structs.replace(planned, image=image), home))
    return asks
