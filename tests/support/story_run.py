"""A plausible run of the whole demo, generated from a seed, for tests of the verdict and the report."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import msgspec

from lab.demo.demo_report import Setting, build_report
from lab.demo.demo_workload import EEA
from lab.demo.records import (
    Answer,
    Attempt,
    BatchScene,
    Billed,
    Event,
    EventKind,
    ImageJob,
    Outcome,
    Run,
    Served,
    Sighting,
    TenantRequest,
    TenantScene,
)
from lab.demo.scenario import ActName, PhaseName, full_scenario
from lab.demo.verdict import judge
from lab.geoip import SITES, ClientSite
from lab.planet.fleet_watch import Look
from lab.planet.sites import entry_rtt_ms, nearest_first
from lab.wan.matrix import SHIPPED_SITES

REGIONS = ("eu-de", "eu-es", "eu-gb", "jp-tok", "us-east")
EU = ("eu-de", "eu-es")
RAMP_S = 8.0
IMAGES = 40


@cache
def story_run(seed: int = 7, rate_per_s: float = 10.0) -> Run:
    """A run as intended: spillover, failover within 1 s, ramped failback; only streams in progress at the kill fail."""
    rng = Random(seed)
    scenario = full_scenario("eu-de", 4.0, "eu-de")
    killed_s, started_s = scenario.act_at_s(ActName.KILL_REGION), scenario.act_at_s(ActName.START_REGION)
    ready_s = started_s + 1.4
    served, sightings = [], []
    at_s = 0.0
    while at_s < scenario.duration_s:
        site = rng.choices(
            SITES, [_weight(place, scenario.demand_factor(_home(place, REGIONS), at_s)) for place in SITES]
        )[0]
        total = sum(_weight(place, scenario.demand_factor(_home(place, REGIONS), at_s)) for place in SITES)
        at_s += rng.expovariate(rate_per_s * total / sum(place.share for place in SITES))
        governed = rng.random() < (0.6 if site.country in EEA else 0.1)
        required = EU if governed else REGIONS
        home = _home(site, required)
        surging = home == "eu-de" and 2.0 < at_s - scenario.act_at_s(ActName.SURGE_BEGINS) < 9.5
        server = home
        attempts = []
        first = _home(site, REGIONS)
        dead = killed_s <= at_s < ready_s
        others = [region for region in nearest_first(site, required) if region != "eu-de"]
        if surging and rng.random() < 0.45:
            server = others[0]
        if home == "eu-de" and dead:
            server = others[0]
        if home == "eu-de" and ready_s <= at_s < ready_s + RAMP_S and rng.random() > (at_s - ready_s) / RAMP_S:
            server = others[0]
        if first == "eu-de" and killed_s <= at_s < killed_s + 0.6:
            attempts.append(Attempt(at_s, "eu-de", Answer.BROKEN))
        if first not in required:
            attempts.append(Attempt(at_s, first, Answer.REDIRECTED))
        attempts.append(Attempt(at_s + 0.03, server if dead and home == "eu-de" else home, Answer.SERVED))
        ttft_s = (
            0.12 + entry_rtt_ms(site, server) / 1000 + rng.expovariate(9.0) + (0.5 * rng.random() if surging else 0.0)
        )
        e2e_s = ttft_s + rng.lognormvariate(0.0, 0.5)
        running = home == "eu-de" and at_s < killed_s < at_s + e2e_s and server == "eu-de"
        id_ = f"r{len(served):05d}"
        sightings.append(Sighting(id_, at_s + 0.05, server, f"{server}-{rng.randrange(3)}", required))
        served.append(
            Served(
                id_,
                at_s,
                site.name,
                "eu-personal" if governed else "open",
                "llama-3.1-8b",
                required,
                home,
                tuple(attempts),
                Outcome.FAILED if running else Outcome.OK,
                200,
                "the stream broke off" if running else "",
                server,
                f"{server}-0",
                ttft_s,
                None if running else e2e_s,
                rng.randrange(10, 80),
            )
        )
    for number in range(3):
        served.append(_through(number, killed_s))
        sightings.append(Sighting(served[-1].id, served[-1].due_s + 0.05, "eu-de", "eu-de-large", REGIONS))
    served.sort(key=lambda request: request.due_s)
    images = [_image(rng, number, scenario.duration_s * (number + 0.5) / IMAGES) for number in range(IMAGES)]
    sightings += [
        Sighting(job.request.id, job.request.due_s + 0.1, job.request.server, "images", job.request.required)
        for job in images
    ]
    return Run(
        scenario,
        tuple(request for request in served if request.due_s < scenario.duration_s),
        tuple(sightings),
        frozenset(sighting.id for sighting in sightings),
        _events(scenario.act_at_s, killed_s, ready_s),
        (
            Look(killed_s - 20),
            Look(killed_s + 0.2, retries={"eu-gb/a": 3}),
            Look(killed_s + 0.3, retries={"eu-gb/a": 4}),
            Look(killed_s + 0.41, failed_peers={"eu-gb/a": ("eu-de",)}),
            Look(killed_s + 0.55, failed_peers={"eu-gb/a": ("eu-de",), "us-east/a": ("eu-de",)}),
        ),
        RAMP_S,
        tuple(images),
        tenant_scene(scenario.act_at_s(ActName.TENANTS)),
        batches=batch_scenes(killed_s - 7.0),
        processes=20,
    )


AWAY = {"jp-tok": 2, "us-east": 10}
"""Where a batch of jp-tok ran."""


def batch_scenes(created_at_s: float) -> tuple[BatchScene, BatchScene]:
    """A batch of a region that stays, and one whose region is killed: two of its requests ran twice."""
    night, lost = (tuple(f"line-{number}" for number in range(count)) for count in (12, 6))
    runs = (1, 2, 1, 2, 1, 1)
    return (
        BatchScene("jp-tok", 12, created_at_s, created_at_s + 30.0, "completed", night, (), None, (1,) * 12, 0, AWAY),
        BatchScene("eu-de", 6, created_at_s, created_at_s + 60.0, "completed", lost, (), 2, runs, 0),
    )


def tenant_scene(began_at_s: float) -> TenantScene:
    """A flood of which a budget admits 13 requests, a quiet tenant beside it, and a key that is revoked."""
    refusal = "tenant flood has used up the budget of 60 requests per minute for the fleet"
    flood = [TenantRequest("flood", f"flood-{number}", 200, 0.2) for number in range(13)]
    flood += [TenantRequest("flood", "", 429, 0.01, refusal) for _ in range(200)]
    quiet = [TenantRequest("quiet", f"quiet-{number}", 200, 0.2) for number in range(9)]
    leaked = [TenantRequest("leaked", "leaked-0", 200, 1.9), TenantRequest("leaked", "", 401, 0.01)]
    served = [request for request in (*flood, *quiet) if request.status == 200]
    return TenantScene(
        began_at_s=began_at_s,
        requests=(*flood, *quiet, *leaked),
        revoked_at_s=began_at_s + 1.6,
        stream_ended_at_s=began_at_s + 1.7,
        status_after_revocation=401,
        billed=(
            *(Billed(request.id, request.tenant, "ok", 16, False) for request in served),
            Billed("leaked-0", "leaked", "revoked", 120, True),
        ),
        generated={request.id: 16 for request in served} | {"leaked-0": 124},
        flood_s=4.1,
    )


def _through(number: int, killed_s: float) -> Served:
    """A stream of eu-de to a client of eu-gb at the kill, which eu-es continues."""
    attempts = (Attempt(killed_s - 1.0, "eu-gb", Answer.SERVED),)
    return Served(
        f"through-{number:05d}",
        killed_s - 1.0,
        "London",
        "open",
        "llama-3.1-70b",
        REGIONS,
        "eu-de",
        attempts,
        Outcome.OK,
        200,
        "",
        "eu-es",
        "eu-es-large",
        0.2,
        3.0,
        180,
    )


def _image(rng: Random, number: int, due_s: float) -> ImageJob:
    """A job that ran in eu-es, an EU region that does not fail."""
    site = rng.choice(SITES)
    required = EU if number % 3 == 0 else REGIONS
    request = Served(
        f"image-{number:05d}",
        due_s,
        site.name,
        "eu-personal" if required is EU else "open",
        "sdxl",
        required,
        _home(site, required),
        (Attempt(due_s, "eu-es", Answer.SERVED),),
        Outcome.OK,
        200,
        "",
        "eu-es",
        "eu-es-images",
        None,
        1.0 + rng.random(),
        0,
    )
    return ImageJob(request, 10.0 + number, 10.0 + number)


def change_image(run: Run, number: int, accounted: float | None = None, **fields: object) -> Run:
    """The run with other fields of one image job, and optionally with `accounted` megapixel steps."""
    images = list(run.images)
    job = images[number]
    request = msgspec.structs.replace(job.request, **fields)
    steps = job.accounted_megapixel_steps if accounted is None else accounted
    images[number] = msgspec.structs.replace(job, request=request, accounted_megapixel_steps=steps)
    return msgspec.structs.replace(run, images=tuple(images))


def without(run: Run, kind: EventKind) -> Run:
    """The run without the events of a kind."""
    return msgspec.structs.replace(run, events=tuple(event for event in run.events if event.kind is not kind))


def change(run: Run, number: int, **fields: object) -> Run:
    """The run with other fields of one request."""
    served = list(run.served)
    served[number] = msgspec.structs.replace(served[number], **fields)
    return msgspec.structs.replace(run, served=tuple(served))


def in_phase(run: Run, name: PhaseName) -> list[int]:
    """The indexes of the requests of a phase."""
    return [number for number, request in enumerate(run.served) if run.scenario.phase(name).covers(request.due_s)]


def report_setting(**changed: Any) -> Setting:
    """The inputs of a run as its report states them, with `changed` fields."""
    engines = [{"model": "m", "max_num_seqs": 8}]
    regions = tuple(
        {"name": name, "city": name, "latitude_deg": lat, "longitude_deg": lon, "agents": 1, "engines": engines}
        for name, (lat, lon) in SHIPPED_SITES.items()
    )
    sites = tuple(msgspec.to_builtins(site) for site in SITES)
    fields = {
        "made_at": "2026-01-01T00:00:00+00:00",
        "workload": "made up by a test",
        "geography": "laid over the arrivals",
        "network": "estimated",
        "regions": regions,
        "sites": sites,
        "environment": {"cores": 2},
    }
    return Setting(**{**fields, **changed})


def report_of(run: Run) -> dict[str, Any]:
    """The report of a run."""
    return build_report(run, judge(run), report_setting())


@cache
def _home(site: ClientSite, permitted: tuple[str, ...]) -> str:
    return nearest_first(site, permitted)[0]


def _weight(site: ClientSite, factor: float) -> float:
    return site.share * factor


def _events(act_at_s: Callable[[ActName], float], killed_s: float, ready_s: float) -> tuple[Event, ...]:
    return (
        Event(act_at_s(ActName.SURGE_BEGINS), EventKind.SURGE_BEGAN, "eu-de's clients ask for 4 times as much"),
        Event(act_at_s(ActName.SURGE_ENDS), EventKind.SURGE_ENDED, "the surge is over"),
        Event(killed_s, EventKind.REGION_KILLED, "kill -9 of everything in eu-de"),
        Event(killed_s + 0.41, EventKind.LOSS_DETECTED, "eu-gb says that eu-de has failed"),
        Event(act_at_s(ActName.START_REGION), EventKind.REGION_STARTED, "eu-de is started again"),
        Event(ready_s, EventKind.REGION_READY, "eu-de is ready"),
        Event(act_at_s(ActName.KILL_LEADER), EventKind.LEADER_KILLED, "kill -9 of the leading control plane"),
        Event(act_at_s(ActName.KILL_LEADER) + 2.3, EventKind.NEW_LEADER, "cp-b leads"),
        Event(act_at_s(ActName.KILL_ETCD), EventKind.ETCD_KILLED, "kill -9 of etcd"),
        Event(act_at_s(ActName.KILL_REDIS), EventKind.REDIS_KILLED, "kill -9 of Redis"),
    )
