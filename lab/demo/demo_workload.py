"""The demo's workload: arrivals and lengths of a trace, fitted to the scenario's demand and spread over client sites.

The permitted regions of each request come from a hand-written table of the rules in `policies/planet`. The residency
code of Penstock is not used here, so that the residency witness does not depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec

from lab.demo.scenario import ActName, Scenario
from lab.geoip import ClientSite
from lab.planet.sites import nearest_first
from lab.planet.topology import CHAT_8B, CHAT_70B, Topology
from lab.replay.replay_workload import PlannedRequest
from lab.traces.shape import cap_tokens
from lab.traces.trace import TraceRequest, blocks_of
from lab.wan.matrix import RttMatrix

# fmt: off
EEA = frozenset({
    "AT", "BE", "BG", "CY", "CZ", "DE", "DK", "EE", "ES", "FI", "FR", "GR", "HR", "HU", "IE", "IT", "LT", "LU", "LV",
    "MT", "NL", "PL", "PT", "RO", "SE", "SI", "SK", "IS", "LI", "NO",
})
# fmt: on
"""The European Economic Area: the member states of the EU, and Iceland, Liechtenstein and Norway."""

EU_REGIONS = ("eu-de", "eu-es")
US_REGIONS = ("us-east",)

TENANT_KEYS = {
    "eu-personal": "demo-eu-personal",
    "personal": "demo-personal",
    "us-restricted": "demo-us-restricted",
    "open": "demo-open",
}
"""Public demo API key of each tenant of the example bundle."""

TENANTS_AT_HOME_IN_EEA = {"personal": 0.5, "open": 0.4, "eu-personal": 0.1}
TENANTS_IN_US = {"open": 0.7, "us-restricted": 0.18, "eu-personal": 0.12}
TENANTS_ELSEWHERE = {"open": 0.75, "personal": 0.15, "eu-personal": 0.1}
"""Share of each tenant in the requests from outside the EEA and the US. Clients of EU tenants travel, so their requests
come from all countries."""

LARGE_MODEL_SHARE = 0.2

MEAN_PROMPT_TOKENS = 1_000
MEAN_OUTPUT_TOKENS = 65
"""Lengths are scaled down to these mean values, so that with any trace a response takes seconds and the fleet can serve
the demand."""

MAX_PROMPT_TOKENS = 4_000
MAX_OUTPUT_TOKENS = 180

PULSE_EVERY_S = 0.1
PULSE_BEFORE_S = 0.1
PULSE_AFTER_S = 1.4
PULSE_PROMPT_TOKENS = 64
PULSE_OUTPUT_TOKENS = 8

THROUGH_COUNT = 6
THROUGH_BEFORE_S = 1.6
THROUGH_EVERY_S = 0.2
THROUGH_OUTPUT_TOKENS = 180
"""Streams that the lost region sends through other regions when it is killed. They begin in time for their first token,
and are long enough not to end before the kill."""

FEWEST_ARRIVALS = 200
"""Minimum number of requests in a trace."""


class TooShort(Exception):
    """The trace has too few requests for the scenario."""


class Ask(msgspec.Struct, frozen=True):
    """One planned request of a client, with its home region."""

    planned: PlannedRequest
    home: str
    """The nearest region to the client's entry that is permitted for the request and serves its model."""


def required_regions(tenant: str, country: str, regions: Sequence[str]) -> tuple[str, ...]:
    """Return the regions that may process a request of a tenant from a country.

    Raises:
        KeyError: the tenant is unknown.
    """
    return {
        "eu-personal": EU_REGIONS,
        "personal": EU_REGIONS if country in EEA else tuple(regions),
        "us-restricted": US_REGIONS,
        "open": tuple(regions),
    }[tenant]


def steadiest_stretch(trace: Sequence[TraceRequest], count: int) -> Sequence[TraceRequest]:
    """Return the `count` successive requests of a trace with the steadiest arrival rate.

    The scenario adds its surge to this rate. Arrivals are not smoothed.
    """
    if len(trace) <= count:
        return trace
    marks = range(0, count, max(1, count // 16))

    def unevenness(first: int) -> float:
        began_s, span_s = trace[first].at_s, trace[first + count - 1].at_s - trace[first].at_s
        if span_s <= 0:
            return float("inf")
        return max(abs((trace[first + mark].at_s - began_s) / span_s - mark / (count - 1)) for mark in marks)

    first = min(range(0, len(trace) - count + 1, max(1, count // 20)), key=unevenness)
    return trace[first : first + count]


def length_factors(trace: Sequence[TraceRequest]) -> tuple[float, float]:
    """Return the factors (0-1] that scale prompts and outputs down to the configured means."""
    prompt = sum(request.prompt_tokens for request in trace) / len(trace)
    output = sum(request.output_tokens for request in trace) / len(trace)
    return min(1.0, MEAN_PROMPT_TOKENS / prompt), min(1.0, MEAN_OUTPUT_TOKENS / max(1.0, output))


def shorten(trace: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Scale the lengths of all requests by `length_factors`, and shared prefixes in proportion."""
    by_prompt, by_output = length_factors(trace)
    shorter = []
    for request in trace:
        prompt_tokens = max(1, round(request.prompt_tokens * by_prompt))
        blocks = request.prefix_blocks[: blocks_of(prompt_tokens)]
        output_tokens = max(1, round(request.output_tokens * by_output))
        shorter.append(TraceRequest(request.at_s, prompt_tokens, output_tokens, blocks))
    return shorter


def fit_arrivals(trace: Sequence[TraceRequest], scenario: Scenario, surge_share: float) -> list[float]:
    """Return the time (s) of each request in the scenario.

    Time is compressed where the scenario needs more demand. Order and relative burstiness are preserved, and no arrival
    is added or removed.

    Args:
        trace: arrivals in order.
        scenario: defines the duration, and the time and factor of the surge.
        surge_share: share (0-1) of the demand that the surge multiplies.
    """
    step_s = 0.02
    steps = round(scenario.duration_s / step_s)
    wanted = [
        1.0 + surge_share * (scenario.demand_factor(scenario.surge_region, step * step_s) - 1.0)
        for step in range(steps)
    ]
    # One mean gap longer than the trace, so that the last request is due before the scenario ends.
    span_s = (trace[-1].at_s - trace[0].at_s) * len(trace) / (len(trace) - 1)
    speeds = [span_s * factor / (sum(wanted) * step_s) for factor in wanted]
    due_s: list[float] = []
    passed_s = 0.0
    for step, speed in enumerate(speeds):
        while len(due_s) < len(trace) and trace[len(due_s)].at_s - trace[0].at_s < passed_s + speed * step_s:
            due_s.append(step * step_s + (trace[len(due_s)].at_s - trace[0].at_s - passed_s) / speed)
        passed_s += speed * step_s
    return due_s


def home_of(site: ClientSite, required: Sequence[str], model: str, topology: Topology, matrix: RttMatrix) -> str:
    """Return the nearest region to the client's entry that is permitted and serves the model."""
    entry = nearest_first(site, topology.region_names)[0]
    able = set(required) & set(topology.serving(model))
    return min(able, key=lambda region: (region != entry, matrix.between(entry, region), region))


def near_share(topology: Topology, region: str) -> float:
    """Return the share (0-1) of the demand whose clients are nearest to `region`."""
    near = sum(s.share for s in topology.sites if nearest_first(s, topology.region_names)[0] == region)
    return near / sum(site.share for site in topology.sites)


def requests_wanted(topology: Topology, scenario: Scenario, rate_per_s: float) -> int:
    """Return the number of requests in the scenario at `rate_per_s` outside the surge."""
    surge_s = scenario.act_at_s(ActName.SURGE_ENDS) - scenario.act_at_s(ActName.SURGE_BEGINS)
    surplus = near_share(topology, scenario.surge_region) * (scenario.surge_factor - 1.0)
    return round(rate_per_s * (scenario.duration_s + surge_s * surplus))


def plan_requests(
    trace: Sequence[TraceRequest], topology: Topology, scenario: Scenario, matrix: RttMatrix, rng: Random
) -> list[Ask]:
    """Return the scenario's requests: a client site, a tenant and a model for each arrival of a trace.

    Args:
        trace: arrivals in order; all of them are used.
        topology: the client sites, and the models of each region.
        scenario: its surge multiplies the demand of clients whose nearest region is the surge region.
        matrix: round trips between regions.
        rng: selects sites, tenants and models.

    Raises:
        TooShort: the trace has fewer than FEWEST_ARRIVALS requests, or all requests have the same time.
    """
    if len(trace) < FEWEST_ARRIVALS or trace[-1].at_s <= trace[0].at_s:
        raise TooShort(f"has {len(trace)} requests; the story needs at least {FEWEST_ARRIVALS}, spread over time")
    regions = topology.region_names
    nearest = {site.name: nearest_first(site, regions) for site in topology.sites}
    due_s = fit_arrivals(trace, scenario, near_share(topology, scenario.surge_region))
    lengths = cap_tokens(shorten(trace), MAX_PROMPT_TOKENS, MAX_OUTPUT_TOKENS)
    asks = []
    for number, (at_s, length) in enumerate(zip(due_s, lengths, strict=True)):
        weights = [site.share * scenario.demand_factor(nearest[site.name][0], at_s) for site in topology.sites]
        site = rng.choices(topology.sites, weights)[0]
        tenants = tenants_of(site.country)
        tenant = rng.choices(list(tenants), list(tenants.values()))[0]
        model = CHAT_70B if rng.random() < LARGE_MODEL_SHARE else CHAT_8B
        planned = planned_request(f"demo-{number:05d}", at_s, Sender(site, tenant, model), length, regions, rng)
        asks.append(Ask(planned, home_of(site, planned.required_regions, model, topology, matrix)))
    return asks


class Sender(NamedTuple):
    """The client of a request."""

    site: ClientSite
    tenant: str
    model: str


def planned_request(
    request_id: str, at_s: float, sender: Sender, lengths: TraceRequest, regions: Sequence[str], rng: Random
) -> PlannedRequest:
    """Return the request of a client; `regions` are the fleet's, and `rng` selects the client's address."""
    site, tenant, model = sender
    return PlannedRequest(
        id=request_id,
        at_s=at_s,
        site=site.name,
        client_address=site.address(rng),
        tenant=tenant,
        api_key=TENANT_KEYS[tenant],
        model=model,
        lengths=lengths,
        required_regions=required_regions(tenant, site.country, regions),
    )


def pulse(topology: Topology, scenario: Scenario, matrix: RttMatrix, rng: Random) -> list[Ask]:
    """Return short requests from clients of the lost region, at intervals of PULSE_EVERY_S around its failure.

    A few requests per second would measure the failover time imprecisely.
    """
    regions, lost = topology.region_names, scenario.lost_region
    near = [site for site in topology.sites if nearest_first(site, regions)[0] == lost]
    killed_s = scenario.act_at_s(ActName.KILL_REGION)
    asks = []
    for number in range(round((PULSE_BEFORE_S + PULSE_AFTER_S) / PULSE_EVERY_S) if near else 0):
        site, tenant = near[number % len(near)], ("personal", "open")[number % 2]
        at_s = killed_s - PULSE_BEFORE_S + number * PULSE_EVERY_S
        lengths = TraceRequest(0.0, PULSE_PROMPT_TOKENS, PULSE_OUTPUT_TOKENS)
        planned = planned_request(f"pulse-{number:05d}", at_s, Sender(site, tenant, CHAT_8B), lengths, regions, rng)
        asks.append(Ask(planned, home_of(site, planned.required_regions, CHAT_8B, topology, matrix)))
    return asks


def through(topology: Topology, scenario: Scenario, matrix: RttMatrix, rng: Random) -> list[Ask]:
    """Return streams from clients of other regions whose nearest region with the model is the lost region.

    Each is running when the region is killed, so that the entry's agent has to continue it elsewhere. Too few of the
    arrivals of a trace are running then. Empty if no client site has such a model.
    """
    regions, lost, tenant = topology.region_names, scenario.lost_region, "open"
    found = [
        (site, model)
        for site in topology.sites
        for model in (CHAT_8B, CHAT_70B)
        if nearest_first(site, regions)[0] != lost and home_of(site, regions, model, topology, matrix) == lost
    ]
    asks = []
    for number in range(THROUGH_COUNT if found else 0):
        site, model = found[number % len(found)]
        at_s = scenario.act_at_s(ActName.KILL_REGION) - THROUGH_BEFORE_S + number * THROUGH_EVERY_S
        lengths = TraceRequest(0.0, PULSE_PROMPT_TOKENS, THROUGH_OUTPUT_TOKENS)
        planned = planned_request(f"through-{number:05d}", at_s, Sender(site, tenant, model), lengths, regions, rng)
        asks.append(Ask(planned, lost))
    return asks


def tenants_of(country: str) -> dict[str, float]:
    """Return the share of each tenant in the requests from a country."""
    if country in EEA:
        return TENANTS_AT_HOME_IN_EEA
    return TENANTS_IN_US if country == "US" else TENANTS_ELSEWHERE
