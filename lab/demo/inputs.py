"""Inputs of a demo, checked before a process starts: trace, GeoIP database, round trips, policy, demand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec

from control_plane.policy.compiler import compile_bundle
from lab.demo.demo_workload import (
    EU_REGIONS,
    MAX_OUTPUT_TOKENS,
    MAX_PROMPT_TOKENS,
    PULSE_EVERY_S,
    Ask,
    TooShort,
    lay_geography,
    near_share,
    pulse,
    requests_wanted,
    shrinkage,
    steadiest_stretch,
)
from lab.demo.images.image_workload import IMAGE_RATE_PER_S, lay_images
from lab.demo.scenario import Scenario, full_scenario
from lab.geoip import SITES, ClientSite, sites_from_database
from lab.planet.bundle import demo_bundle, load_bundle, matrix_of
from lab.planet.sites import nearest_first
from lab.planet.topology import Topology, demo_planet
from lab.traces.generate import generate
from lab.traces.read import read_trace
from lab.traces.trace import TraceError, TraceRequest
from lab.wan.matrix import RttMatrix, read_matrix
from penstock.policy.policy import Policy

RATE_PER_S = 9.0
"""Mean demand (requests/s) of the whole planet outside the surge: what two cores serve with everything they emulate."""

SURGE_FACTOR = 4.0
"""How many times as much the surged region's clients ask for: more than their region can serve."""

HERO_SHARE = 0.32
"""Part (0-1) of the usual demand that comes from clients near the region that is surged and lost, wherever a GeoIP
database places the others: enough to see, and little enough to be served at home until the surge."""

GENERATED_S = 400.0
"""How much workload (s) is generated where there is no trace, for the steadiest stretch of it."""


class DemoInputs(msgspec.Struct, frozen=True):
    """Inputs of a demo."""

    topology: Topology
    scenario: Scenario
    asks: tuple[Ask, ...]
    bundle: dict[str, str]
    """Files of the policy bundle by name."""
    policy: Policy
    """The same, compiled."""
    matrix: RttMatrix
    workload: str
    """Where arrivals and lengths come from, for the report."""
    geography: str
    network: str


def gather(
    trace_file: Path | None, geoip_file: Path | None, rtt_file: Path | None, pace: float, rng: Random
) -> DemoInputs:
    """Read and check the inputs.

    Args:
        trace_file: an Azure or Mooncake trace; None generates a like workload.
        geoip_file: a MaxMind City database to take client sites from; None takes the lab's own table.
        rtt_file: measured round trips between regions; None takes the policy bundle's.
        pace: scales the scenario's durations.
        rng: the only source of randomness.

    Raises:
        TraceError, GeoDatabaseError, MatrixError, PolicyRefused: an input cannot be used; the message names it.
    """
    matrix = read_matrix(rtt_file) if rtt_file is not None else matrix_of(load_bundle())
    topology = demo_planet(sites_from_database(geoip_file, rng) if geoip_file is not None else SITES)
    hero = _hero(topology)
    topology = demo_planet(_with_share(topology, hero, HERO_SHARE))
    for origin in topology.region_names:
        for server in topology.region_names:
            matrix.between(origin, server)
    scenario = full_scenario(hero, SURGE_FACTOR, hero, pace=pace)
    trace = read_trace(trace_file, rng) if trace_file is not None else generate(GENERATED_S, rng)
    stretch = steadiest_stretch(trace, requests_wanted(topology, scenario, RATE_PER_S))
    try:
        asks = lay_geography(stretch, topology, scenario, matrix, rng)
    except TooShort as error:
        path = trace_file if trace_file is not None else Path("generated workload")
        raise TraceError(path, str(error), "give a longer trace") from None
    pulses = pulse(topology, scenario, matrix, rng)
    images = lay_images(topology, scenario, matrix, rng)
    bundle = demo_bundle(matrix)
    return DemoInputs(
        topology=topology,
        scenario=scenario,
        asks=(*asks, *pulses, *images),
        bundle=bundle,
        policy=compile_bundle(bundle),
        matrix=matrix,
        workload=_workload(trace_file, stretch, scenario, len(pulses), len(images)),
        geography=_geography(geoip_file),
        network=_network(rtt_file),
    )


def _hero(topology: Topology) -> str:
    """The region that is surged and lost: one of the EU where it has clients, since residency is tightest there."""
    share = {region: near_share(topology, region) for region in topology.region_names}
    in_eu = [region for region in EU_REGIONS if share[region] >= 0.05]
    return max(in_eu or topology.region_names, key=lambda region: share[region])


def _with_share(topology: Topology, hero: str, share: float) -> list[ClientSite]:
    """The same sites, with `share` (0-1) of the demand near `hero` and the proportions otherwise as they were."""
    now = near_share(topology, hero)
    if now >= 1.0:
        return list(topology.sites)
    factor = share / now * (1.0 - now) / (1.0 - share)
    return [
        msgspec.structs.replace(site, share=site.share * factor)
        if nearest_first(site, topology.region_names)[0] == hero
        else site
        for site in topology.sites
    ]


def _workload(
    trace_file: Path | None, stretch: Sequence[TraceRequest], scenario: Scenario, pulses: int, images: int
) -> str:
    begin_s, span_s = stretch[0].at_s, stretch[-1].at_s - stretch[0].at_s
    by_prompt, by_output = shrinkage(stretch)
    details = (
        f"played in {scenario.duration_s:.0f} s, {span_s / scenario.duration_s:.2f} times as fast on average and "
        f"faster during the surge; prompts times {by_prompt:.2f} and outputs times {by_output:.2f}, at most "
        f"{MAX_PROMPT_TOKENS} and {MAX_OUTPUT_TOKENS} tokens. Besides, {pulses} short requests, one each "
        f"{PULSE_EVERY_S * 1000:.0f} ms around the region's death, which measure rerouting, and {images} image jobs, "
        f"{IMAGE_RATE_PER_S:g} a second on average and independent of the surge"
    )
    if trace_file is None:
        return (
            f"{len(stretch)} requests generated by lab.traces.generate, which is fitted to the conversation trace of "
            f"the Azure LLM inference trace 2023; {details}"
        )
    return (
        f"{len(stretch)} successive real requests of {trace_file.name}, from second {begin_s:.0f} on: the steadiest "
        f"stretch of the trace that is as long, since the scenario adds its own surge; {details}"
    )


def _geography(geoip_file: Path | None) -> str:
    details = "No trace says where its clients were: places, tenants and models are laid over the arrivals at random"
    if geoip_file is None:
        return (
            f"{details}, from the lab's table of cities, with a GeoIP database made of that table (RFC 2544 addresses)."
        )
    return f"{details}, at networks of {geoip_file.name}."


def _network(rtt_file: Path | None) -> str:
    between = (
        f"as measured in {rtt_file.name}" if rtt_file is not None else "as in the policy bundle's geo-routing.yaml"
    )
    return (
        f"Round trips between regions {between}; from client sites estimated from great-circle distances. All of them "
        "are emulated on loopback, bandwidth and loss are not."
    )
