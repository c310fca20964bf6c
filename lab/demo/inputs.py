"""Reads and checks the inputs of a demo before any process starts: trace, GeoIP database, round trips and policy."""

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
    length_factors,
    near_share,
    plan_requests,
    pulse,
    requests_wanted,
    steadiest_stretch,
    through,
)
from lab.demo.images.image_workload import IMAGE_RATE_PER_S, plan_image_jobs
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
"""Mean demand (requests/s) of the whole fleet outside the surge. Two cores can run the fleet at this rate."""

SURGE_FACTOR = 4.0
"""Factor of the surge region's demand during the surge. It exceeds the capacity of the region."""

SURGE_REGION_SHARE = 0.32
"""Share (0-1) of the demand outside the surge from clients near the region that is surged and lost. The region can
serve this share without a surge."""

GENERATED_S = 400.0
"""Length (s) of the generated workload from which the steadiest stretch is taken if no trace is given."""


class DemoInputs(msgspec.Struct, frozen=True):
    """The checked inputs of a demo."""

    topology: Topology
    scenario: Scenario
    asks: tuple[Ask, ...]
    bundle: dict[str, str]
    """Content of the policy bundle's files by name."""
    policy: Policy
    """The compiled `bundle`."""
    matrix: RttMatrix
    geoip_file: Path | None
    """Database that locates clients; None for the lab's table of sites."""
    workload: str
    """Description of the source of arrivals and lengths, for the report."""
    geography: str
    network: str


def gather(
    trace_file: Path | None, geoip_file: Path | None, rtt_file: Path | None, pace: float, rng: Random
) -> DemoInputs:
    """Read and check the inputs of a demo.

    Args:
        trace_file: an Azure or Mooncake trace; None generates a workload.
        geoip_file: a MaxMind City database that provides the client sites; None uses the lab's table.
        rtt_file: measured round trips between regions; None uses the round trips of the policy bundle.
        pace: scales the durations of the scenario.
        rng: source of all randomness.

    Raises:
        TraceError, GeoDatabaseError, MatrixError, PolicyRefused: an input is invalid; the message names the input.
    """
    matrix = read_matrix(rtt_file) if rtt_file is not None else matrix_of(load_bundle())
    topology = demo_planet(sites_from_database(geoip_file, rng) if geoip_file is not None else SITES)
    surge_region = _surge_region(topology)
    topology = demo_planet(_with_share(topology, surge_region, SURGE_REGION_SHARE))
    for origin in topology.region_names:
        for server in topology.region_names:
            matrix.between(origin, server)
    scenario = full_scenario(surge_region, SURGE_FACTOR, surge_region, pace=pace)
    trace = read_trace(trace_file, rng) if trace_file is not None else generate(GENERATED_S, rng)
    stretch = steadiest_stretch(trace, requests_wanted(topology, scenario, RATE_PER_S))
    try:
        asks = plan_requests(stretch, topology, scenario, matrix, rng)
    except TooShort as error:
        path = trace_file if trace_file is not None else Path("generated workload")
        raise TraceError(path, str(error), "give a longer trace") from None
    pulses = pulse(topology, scenario, matrix, rng)
    images = plan_image_jobs(topology, scenario, matrix, rng)
    forwarded = through(topology, scenario, matrix, rng)
    bundle = demo_bundle(matrix)
    return DemoInputs(
        topology=topology,
        scenario=scenario,
        asks=(*asks, *pulses, *images, *forwarded),
        bundle=bundle,
        policy=compile_bundle(bundle),
        matrix=matrix,
        geoip_file=geoip_file,
        workload=_workload(trace_file, stretch, scenario, len(pulses), len(images), len(forwarded)),
        geography=_geography(geoip_file),
        network=_network(rtt_file),
    )


def _surge_region(topology: Topology) -> str:
    """Return the region to surge and kill: an EU region if it has clients, since residency is strictest in the EU."""
    share = {region: near_share(topology, region) for region in topology.region_names}
    in_eu = [region for region in EU_REGIONS if share[region] >= 0.05]
    return max(in_eu or topology.region_names, key=lambda region: share[region])


def _with_share(topology: Topology, surge_region: str, share: float) -> list[ClientSite]:
    """Return the sites with the demand near `surge_region` set to `share` (0-1); other proportions are preserved."""
    now = near_share(topology, surge_region)
    if now >= 1.0:
        return list(topology.sites)
    factor = share / now * (1.0 - now) / (1.0 - share)
    return [
        msgspec.structs.replace(site, share=site.share * factor)
        if nearest_first(site, topology.region_names)[0] == surge_region
        else site
        for site in topology.sites
    ]


def _workload(
    trace_file: Path | None,
    stretch: Sequence[TraceRequest],
    scenario: Scenario,
    pulses: int,
    images: int,
    forwarded: int,
) -> str:
    begin_s, span_s = stretch[0].at_s, stretch[-1].at_s - stretch[0].at_s
    by_prompt, by_output = length_factors(stretch)
    details = (
        f"replayed in {scenario.duration_s:.0f} s, {span_s / scenario.duration_s:.2f} times as fast on average and "
        f"faster during the surge; prompts scaled by {by_prompt:.2f} and outputs by {by_output:.2f}, at most "
        f"{MAX_PROMPT_TOKENS} and {MAX_OUTPUT_TOKENS} tokens. In addition, {pulses} short requests at intervals of "
        f"{PULSE_EVERY_S * 1000:.0f} ms around the kill of the region, which measure rerouting, {forwarded} streams "
        f"through other regions that the region is sending when it is killed, and {images} image jobs, "
        f"{IMAGE_RATE_PER_S:g} per second on average and independent of the surge"
    )
    if trace_file is None:
        return (
            f"{len(stretch)} requests generated by lab.traces.generate, which is fitted to the conversation trace of "
            f"the Azure LLM inference dataset 2023; {details}"
        )
    return (
        f"{len(stretch)} successive real requests of {trace_file.name}, from second {begin_s:.0f} on: the stretch "
        f"of this length with the steadiest rate, since the scenario adds its own surge; {details}"
    )


def _geography(geoip_file: Path | None) -> str:
    details = "No trace says where its clients were: sites, tenants and models are assigned to the arrivals at random"
    if geoip_file is None:
        return f"{details}, from the lab's table of cities, with a GeoIP database built from it (RFC 2544 addresses)."
    return f"{details}, from networks of {geoip_file.name}."


def _network(rtt_file: Path | None) -> str:
    between = (
        f"as measured in {rtt_file.name}" if rtt_file is not None else "as in the policy bundle's geo-routing.yaml"
    )
    return (
        f"Round trips between regions {between}; round trips from client sites are estimated from great-circle "
        "distances. Latency is emulated on loopback; bandwidth and loss are not."
    )
