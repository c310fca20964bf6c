"""A fleet of 100 regions with 2,000 arcs, the same in each run: the status that a control plane of it would return."""

from __future__ import annotations

from random import Random

from adapters.store.members import Member
from control_plane.status.objective_status import ObjectiveStatus
from control_plane.status.status import (
    ArcStatus,
    CountryStatus,
    DemandStatus,
    LeaderStatus,
    PlanStatus,
    PolicyStatus,
    PoolStatus,
    RegionStatus,
    SpilloverStatus,
    Status,
    StoreStatus,
    UnreadyEndpoint,
)
from penstock.fleet.capacity import Shortfall
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason

CITIES = (
    ("us-east", "Ashburn", "US", 39.0, -77.5),
    ("us-ohio", "Columbus", "US", 40.0, -83.0),
    ("us-texas", "Dallas", "US", 32.8, -96.8),
    ("us-iowa", "Des Moines", "US", 41.6, -93.6),
    ("us-west", "San Jose", "US", 37.3, -121.9),
    ("us-oregon", "Portland", "US", 45.5, -122.7),
    ("ca-mtl", "Montreal", "CA", 45.5, -73.6),
    ("mx-qro", "Querétaro", "MX", 20.6, -100.4),
    ("br-sao", "São Paulo", "BR", -23.5, -46.6),
    ("cl-scl", "Santiago", "CL", -33.4, -70.7),
    ("eu-de", "Frankfurt", "DE", 50.1, 8.7),
    ("eu-nl", "Amsterdam", "NL", 52.4, 4.9),
    ("eu-gb", "London", "GB", 51.5, -0.1),
    ("eu-ie", "Dublin", "IE", 53.3, -6.3),
    ("eu-fr", "Paris", "FR", 48.9, 2.4),
    ("eu-es", "Madrid", "ES", 40.4, -3.7),
    ("eu-it", "Milan", "IT", 45.5, 9.2),
    ("eu-se", "Stockholm", "SE", 59.3, 18.1),
    ("eu-pl", "Warsaw", "PL", 52.2, 21.0),
    ("il-tlv", "Tel Aviv", "IL", 32.1, 34.8),
    ("ae-dxb", "Dubai", "AE", 25.2, 55.3),
    ("za-jnb", "Johannesburg", "ZA", -26.2, 28.0),
    ("in-bom", "Mumbai", "IN", 19.1, 72.9),
    ("in-hyd", "Hyderabad", "IN", 17.4, 78.5),
    ("sg-sin", "Singapore", "SG", 1.4, 103.8),
    ("id-jkt", "Jakarta", "ID", -6.2, 106.8),
    ("jp-tok", "Tokyo", "JP", 35.7, 139.7),
    ("jp-osa", "Osaka", "JP", 34.7, 135.5),
    ("kr-sel", "Seoul", "KR", 37.6, 127.0),
    ("hk-hkg", "Hong Kong", "HK", 22.3, 114.2),
    ("tw-tpe", "Taipei", "TW", 25.0, 121.6),
    ("au-syd", "Sydney", "AU", -33.9, 151.2),
    ("au-mel", "Melbourne", "AU", -37.8, 145.0),
    ("nz-akl", "Auckland", "NZ", -36.8, 174.8),
)
"""Name, city, country, latitude and longitude (degrees)."""

REGIONS = 100
ARCS_PER_REGION = 21
"""One at home and 20 to others."""

AWAY = (ArcReason.SPILLOVER, ArcReason.FAILOVER, ArcReason.FAILBACK)
"""Reasons of the arcs of a plan that lead away from home."""

MODELS = ("llama-3.3-70b", "qwen-3-32b", "embed-large")

AT = 1_790_000_000.0
"""Unix time (s) of the first status."""

STATES = (RegionState.HEALTHY,) * 16 + (RegionState.DEGRADED, RegionState.DRAINING, RegionState.FAILED)


def status(second: int) -> Status:
    """The status after `second` seconds. Load and demand of every region change with each."""
    changing = Random(second)
    regions = tuple(_region(number, changing) for number in range(REGIONS))
    names = [region.name for region in regions]
    return Status(
        at=AT + second,
        name="north",
        url="http://127.0.0.1",
        leading=True,
        role="leader",
        role_age_s=7_200.0 + second,
        why="it holds the lease",
        epoch=7,
        leader=LeaderStatus("north", "http://127.0.0.1", 7),
        store=StoreStatus(True),
        policy=PolicyStatus("5f0c" * 16, None, ()),
        plan=PlanStatus(4_711 + second, 7, "5f0c" * 16, 0.6),
        regions=regions,
        agents=(),
        control_planes=(Member("north", "http://127.0.0.1"),),
        arcs=tuple(arc for number in range(REGIONS) for arc in _arcs(number, names)),
        shortfalls=(Shortfall(MODELS[0], ("any",), (names[0],), names[0], 12.0, 30.0),),
        fleet_seen_by="north",
    )


def _region(number: int, changing: Random) -> RegionStatus:
    fixed = Random(number)
    name, city, country, latitude, longitude = CITIES[number % len(CITIES)]
    copy = number // len(CITIES)
    state = STATES[number % len(STATES)]
    slots = fixed.choice((64, 128, 256, 512))
    pools = tuple(
        PoolStatus(model, slots // 16, slots // 16, slots, int(slots * changing.uniform(0.4, 0.98)), 2.5)
        for model in MODELS
    )
    attained = 0.97 if number % 37 == 5 else changing.uniform(0.991, 0.999)
    unready = (UnreadyEndpoint(f"{name}-gpu-7", EndpointCondition.DOWN, "connection refused"),) * (number % 23 == 4)
    demand = tuple(DemandStatus(model, "any", slots * changing.uniform(0.1, 0.3)) for model in MODELS)
    return RegionStatus(
        name=name if copy == 0 else f"{name}-{copy + 1}",
        # The city is optional; regions of the quickstart have none.
        city=city if number < len(CITIES) else "",
        country=country,
        latitude_deg=latitude + copy * fixed.uniform(-3, 3),
        longitude_deg=longitude + copy * fixed.uniform(-4, 4),
        state=state,
        state_age_s=3_600.0,
        report_age_s=changing.uniform(0.1, 1.1),
        pools=pools,
        demand=demand,
        objectives=(ObjectiveStatus(MODELS[0], 2.0, 0.99, 10_000, int(10_000 * attained), attained, attained >= 0.99),),
        spillover=tuple(SpilloverStatus(model, changing.randrange(9), slots // 20, 2, 3) for model in MODELS),
        countries=(CountryStatus(country, sum(origin.requests_per_s for origin in demand)),),
        unready=unready,
        unready_count=len(unready),
    )


def _arcs(number: int, names: list[str]) -> list[ArcStatus]:
    fixed = Random(number)
    origin = names[number]
    others = fixed.sample([name for name in names if name != origin], ARCS_PER_REGION - 1)
    away = [
        ArcStatus(origin, server, fixed.choice(MODELS), "any", 0.4 / len(others), fixed.choice(AWAY))
        for server in others
    ]
    return [*(ArcStatus(origin, origin, model, "any", 0.6, ArcReason.HOME) for model in MODELS), *away]
