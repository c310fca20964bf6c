"""The requests of clients: real arrivals on the scenario's timeline, given residency, home regions by distance."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from random import Random

import msgspec
import pytest

from lab.demo.demo_workload import (
    EEA,
    MAX_OUTPUT_TOKENS,
    MEAN_OUTPUT_TOKENS,
    MEAN_PROMPT_TOKENS,
    TENANT_KEYS,
    THROUGH_COUNT,
    THROUGH_OUTPUT_TOKENS,
    TooShort,
    fit_arrivals,
    home_of,
    near_share,
    plan_requests,
    pulse,
    requests_wanted,
    required_regions,
    shorten,
    steadiest_stretch,
    through,
)
from lab.demo.images.image_workload import IMAGE_RATE_PER_S, plan_image_jobs
from lab.demo.scenario import ActName, PhaseName, full_scenario
from lab.geoip import SITES
from lab.planet.bundle import load_bundle, matrix_of
from lab.planet.sites import nearest_first
from lab.planet.topology import CHAT_8B, CHAT_70B, IMAGE_MODEL, demo_planet
from lab.traces.generate import generate
from lab.traces.trace import TraceRequest, blocks_of

PLANET = demo_planet()
REGIONS = PLANET.region_names
SCENARIO = full_scenario("eu-de", 4.0, "eu-de")
MATRIX = matrix_of(load_bundle())
TRACE = generate(400.0, Random(1))
STRETCH = steadiest_stretch(TRACE, requests_wanted(PLANET, SCENARIO, 9.0))
SITE = {site.name: site for site in SITES}


def plan(seed: int):
    return plan_requests(STRETCH, PLANET, SCENARIO, MATRIX, Random(seed))


asks = cache(plan)


def test_the_same_seed_gives_the_same_requests() -> None:
    assert plan(3) == asks(3)
    assert asks(3) != asks(4)


def test_requests_are_in_order_with_distinct_ids() -> None:
    story = asks(3)
    due_s = [ask.planned.at_s for ask in story]
    assert due_s == sorted(due_s)
    assert due_s[0] >= 0
    assert due_s[-1] < SCENARIO.duration_s
    assert len({ask.planned.id for ask in story}) == len(story)
    assert all(1 <= ask.planned.lengths.output_tokens <= MAX_OUTPUT_TOKENS for ask in story)


def test_the_surge_multiplies_the_demand_of_its_region_only() -> None:
    begin_s, end_s = SCENARIO.act_at_s(ActName.SURGE_BEGINS), SCENARIO.act_at_s(ActName.SURGE_ENDS)
    near, far = Counter(), Counter()
    for seed in (2, 3, 4):
        for ask in asks(seed):
            when = "surge" if begin_s <= ask.planned.at_s < end_s else "else"
            (near if nearest_first(SITE[ask.planned.site], REGIONS)[0] == "eu-de" else far)[when] += 1
    surge_s, else_s = end_s - begin_s, SCENARIO.duration_s - (end_s - begin_s)
    assert 3.0 < (near["surge"] / surge_s) / (near["else"] / else_s) < 5.0
    assert 0.7 < (far["surge"] / surge_s) / (far["else"] / else_s) < 1.4


def test_every_region_has_a_home_demand_in_every_phase() -> None:
    story = asks(3)
    for phase in SCENARIO.phases:
        assert {ask.home for ask in story if phase.covers(ask.planned.at_s)} == set(REGIONS), phase.name


def test_arrivals_are_those_of_the_trace() -> None:
    trace = [TraceRequest(10.0 + number * 0.5, 100, 10) for number in range(400)]
    due_s = fit_arrivals(trace, SCENARIO, 0.5)
    begin_s, end_s = SCENARIO.act_at_s(ActName.SURGE_BEGINS), SCENARIO.act_at_s(ActName.SURGE_ENDS)
    assert len(due_s) == len(trace)
    gaps = [b - a for a, b in pairwise(due_s)]
    surge = [gap for at, gap in zip(due_s, gaps, strict=False) if begin_s < at < end_s - 0.5]
    steady = [gap for at, gap in zip(due_s, gaps, strict=False) if at < begin_s - 0.5]
    assert sum(steady) / len(steady) == pytest.approx(2.5 * sum(surge) / len(surge), rel=0.05)


def test_the_steadiest_stretch_is_a_run_of_the_trace() -> None:
    bursts = [TraceRequest(number // 100 * 9.0 + number * 0.001, 1, 1) for number in range(300)]
    even = [TraceRequest(20.0 + number * 0.2, 1, 1) for number in range(300)]
    stretch = steadiest_stretch([*bursts, *even], 250)
    assert len(stretch) == 250
    assert stretch[0].at_s >= 18.0
    assert list(steadiest_stretch(even, 1000)) == even


@pytest.mark.parametrize(
    "trace",
    [[], [TraceRequest(float(number), 1, 1) for number in range(10)], [TraceRequest(1.0, 1, 1)] * 300],
)
def test_a_trace_that_is_too_short_is_refused(trace: list[TraceRequest]) -> None:
    with pytest.raises(TooShort, match="the story needs at least"):
        plan_requests(trace, PLANET, SCENARIO, MATRIX, Random(1))


@pytest.mark.parametrize(
    ("tenant", "country", "required"),
    [
        ("eu-personal", "DE", {"eu-de", "eu-es"}),
        ("eu-personal", "US", {"eu-de", "eu-es"}),
        ("eu-personal", "JP", {"eu-de", "eu-es"}),
        ("personal", "FR", {"eu-de", "eu-es"}),
        ("personal", "NO", {"eu-de", "eu-es"}),
        ("personal", "GB", set(REGIONS)),
        ("personal", "BR", set(REGIONS)),
        ("us-restricted", "US", {"us-east"}),
        ("us-restricted", "DE", {"us-east"}),
        ("open", "DE", set(REGIONS)),
    ],
)
def test_the_hand_written_residency(tenant: str, country: str, required: set[str]) -> None:
    assert set(required_regions(tenant, country, REGIONS)) == required


def test_the_eea_has_thirty_members() -> None:
    assert len(EEA) == 30
    assert EEA.isdisjoint({"GB", "CH", "US", "TR"})


@pytest.mark.parametrize(
    ("site", "required", "model", "home"),
    [
        ("Hamburg", REGIONS, CHAT_8B, "eu-de"),
        ("Paris", REGIONS, CHAT_8B, "eu-gb"),
        ("Paris", ("eu-de", "eu-es"), CHAT_8B, "eu-de"),
        ("New York", ("eu-de", "eu-es"), CHAT_8B, "eu-es"),
        ("Manchester", REGIONS, CHAT_70B, "eu-de"),
        ("Osaka", REGIONS, CHAT_70B, "us-east"),
        ("Lagos", REGIONS, CHAT_8B, "eu-es"),
    ],
)
def test_home_is_the_nearest_permitted_region_with_the_model(
    site: str, required: tuple[str, ...], model: str, home: str
) -> None:
    assert home_of(SITE[site], required, model, PLANET, MATRIX) == home


def test_phases_and_acts_follow_each_other() -> None:
    ends = [phase.to_s for phase in SCENARIO.phases]
    assert [phase.from_s for phase in SCENARIO.phases] == [0.0, *ends[:-1]]
    assert [act.at_s for act in SCENARIO.acts] == sorted(act.at_s for act in SCENARIO.acts)
    loss, control = SCENARIO.phase(PhaseName.REGION_LOSS), SCENARIO.phase(PhaseName.CONTROL_LOSS)
    assert loss.covers(SCENARIO.act_at_s(ActName.KILL_REGION))
    assert loss.covers(SCENARIO.act_at_s(ActName.START_REGION))
    assert all(control.covers(SCENARIO.act_at_s(name)) for name in (ActName.KILL_LEADER, ActName.KILL_REDIS))
    assert SCENARIO.phase_at(1e9).name is PhaseName.CONTROL_LOSS
    assert full_scenario("a", 2.0, "b", pace=0.5).duration_s < SCENARIO.duration_s


def test_there_is_a_key_for_every_tenant_with_requests() -> None:
    assert {ask.planned.tenant for ask in asks(3)} == set(TENANT_KEYS)


def test_shares_of_nearest_clients_sum_to_one() -> None:
    assert sum(near_share(PLANET, region) for region in REGIONS) == pytest.approx(1.0)


def test_probe_requests_are_dense_around_the_kill_of_a_region() -> None:
    killed_s = SCENARIO.act_at_s(ActName.KILL_REGION)
    pulses = pulse(PLANET, SCENARIO, MATRIX, Random(1))
    due_s = [ask.planned.at_s for ask in pulses]
    assert min(due_s) < killed_s < killed_s + 1.0 < max(due_s)
    assert max(b - a for a, b in pairwise(due_s)) < 0.15
    assert {nearest_first(SITE[ask.planned.site], REGIONS)[0] for ask in pulses} == {"eu-de"}
    assert {len(ask.planned.required_regions) for ask in pulses} == {2, 5}


def test_streams_run_through_another_region_when_the_region_is_killed() -> None:
    streams = through(PLANET, SCENARIO, MATRIX, Random(1))
    killed_s = SCENARIO.act_at_s(ActName.KILL_REGION)
    assert len(streams) == THROUGH_COUNT
    for ask in streams:
        assert nearest_first(SITE[ask.planned.site], REGIONS)[0] != "eu-de" == ask.home
        assert killed_s - 2.0 < ask.planned.at_s < killed_s - 0.4
        assert ask.planned.lengths.output_tokens == THROUGH_OUTPUT_TOKENS
    everywhere = msgspec.structs.replace(PLANET, sites=tuple(site for site in PLANET.sites if site.country == "DE"))
    assert through(everywhere, SCENARIO, MATRIX, Random(1)) == []


def test_image_jobs_arrive_throughout_and_many_are_confined() -> None:
    jobs = plan_image_jobs(PLANET, SCENARIO, MATRIX, Random(1))
    due_s = [job.planned.at_s for job in jobs]
    assert due_s == sorted(due_s)
    assert max(b - a for a, b in pairwise([0.0, *due_s, SCENARIO.duration_s])) < 8.0
    assert len(jobs) == round(IMAGE_RATE_PER_S * SCENARIO.duration_s)
    assert {job.home for job in jobs} == set(PLANET.serving(IMAGE_MODEL))
    assert all(job.home in job.planned.required_regions for job in jobs)
    assert 0.2 < sum(len(job.planned.required_regions) < len(REGIONS) for job in jobs) / len(jobs) < 0.8


def test_long_requests_are_shortened_to_the_mean() -> None:
    long = [TraceRequest(float(n), 8_000 + n, 400, tuple(range(16))) for n in range(100)]
    shorter = shorten(long)
    assert sum(request.output_tokens for request in shorter) / 100 == pytest.approx(MEAN_OUTPUT_TOKENS, rel=0.02)
    assert sum(request.prompt_tokens for request in shorter) / 100 == pytest.approx(MEAN_PROMPT_TOKENS, rel=0.02)
    assert all(len(request.prefix_blocks) == blocks_of(request.prompt_tokens) for request in shorter)
    assert [request.at_s for request in shorter] == [request.at_s for request in long]
    short = [TraceRequest(float(n), 10, 1) for n in range(100)]
    assert shorten(short) == short
