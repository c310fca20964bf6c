"""The busiest parts of a fleet, as `penstock top` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from control_plane.cli.output import table_of
from control_plane.status.endpoint_status import EndpointStatus
from control_plane.status.status import PoolStatus, RegionStatus, Status
from penstock.fleet.endpoint_report import EndpointCondition
from penstock.fleet.report import TenantReport, busiest_tenants

BAR = 20
"""Length of a bar, in characters."""

_ACCEPTING = frozenset({EndpointCondition.READY, EndpointCondition.WARMING})


class TopPool(NamedTuple):
    """One pool."""

    region: str
    pool: PoolStatus


class Top(msgspec.Struct, frozen=True):
    """The busiest regions, pools, endpoints and tenants."""

    leader: str | None
    regions: tuple[RegionStatus, ...]
    pools: tuple[TopPool, ...]
    """Those with the largest part of their slots in use first."""
    endpoints: tuple[EndpointStatus, ...]
    """Those that accept no requests first, then those with the largest part of their slots in use."""
    more_endpoints: int
    tenants: tuple[TenantReport, ...]
    """Those with most requests now, in the shown regions together."""

    @classmethod
    def of(
        cls,
        status: Status,
        endpoints: Sequence[EndpointStatus],
        region: str | None,
        rows: int,
    ) -> Top:
        """Return the first `rows` pools, endpoints and tenants, of one region or of all."""
        pools = [
            TopPool(each.name, pool) for each in status.regions if region in (None, each.name) for pool in each.pools
        ]
        pools.sort(key=lambda each: (-_share(each.pool.in_flight, each.pool.slots), each.region, each.pool.model))
        ordered = sorted(
            endpoints,
            key=lambda each: (each.state in _ACCEPTING, -_share(each.in_flight, each.slots), each.region, each.name),
        )
        of_regions = (row for each in status.regions if region in (None, each.name) for row in each.tenants)
        return cls(
            status.leader.name if status.leader is not None else None,
            status.regions,
            tuple(pools[:rows]),
            tuple(ordered[:rows]),
            max(0, len(ordered) - rows),
            busiest_tenants(of_regions)[:rows],
        )


def top_view(top: Top) -> RenderableType:
    """Return the tables of the busiest parts."""
    parts: list[RenderableType] = [
        Text(f"leader {top.leader}" if top.leader else "no leader", "bold" if top.leader else "bold red"),
        _regions(top.regions),
        _pools(top.pools),
        _endpoints(top.endpoints),
        _tenants(top.tenants),
    ]
    if top.more_endpoints:
        parts.append(Text(f"{top.more_endpoints} more endpoints; --rows shows more", "dim"))
    return Group(*parts)


def _regions(regions: Sequence[RegionStatus]) -> Table:
    numbers = ("requests /s", "waiting", "in flight")
    table = table_of("region", "state", *numbers, "busy", title="Regions", right=numbers)
    for region in sorted(regions, key=lambda each: (-_share(*_load(each)), each.name)):
        demand = sum(row.requests_per_s for row in region.demand)
        waiting = sum(row.waiting for row in region.spillover)
        in_flight, slots = _load(region)
        numbers = (f"{demand:.1f}", str(waiting), f"{in_flight}/{slots}")
        table.add_row(region.name, region.state.value, *numbers, _bar(in_flight, slots))
    return table


def _load(region: RegionStatus) -> tuple[int, int]:
    return sum(pool.in_flight for pool in region.pools), sum(pool.slots for pool in region.pools)


def _pools(pools: Sequence[TopPool]) -> Table:
    numbers = ("in flight", "ready", "s / request")
    table = table_of("region", "model", *numbers, "busy", title="Pools", right=numbers)
    for region, pool in pools:
        ready, load = f"{pool.ready}/{pool.endpoints}", f"{pool.in_flight}/{pool.slots}"
        table.add_row(region, pool.model, load, ready, f"{pool.service_s:.2f}", _bar(pool.in_flight, pool.slots))
    return table


def _endpoints(endpoints: Sequence[EndpointStatus]) -> Table:
    table = table_of("region", "endpoint", "state", "in flight", "busy", "remarks", title="Endpoints")
    for each in endpoints:
        colour = "green" if each.state in _ACCEPTING else "bold red"
        state, load = Text(each.state.value, colour), f"{each.in_flight}/{each.slots}"
        remarks = "; ".join(filter(None, (each.reason, each.skew)))
        table.add_row(each.region, each.name, state, load, _bar(each.in_flight, each.slots), remarks)
    return table


def _tenants(tenants: Sequence[TenantReport]) -> Table:
    table = table_of("tenant", "in flight", "waiting", title="Tenants", right=("in flight", "waiting"))
    for each in tenants:
        table.add_row(each.tenant, str(each.in_flight), str(each.waiting))
    return table


def _share(used: float, of: float) -> float:
    return used / of if of > 0 else 0.0


def _bar(used: float, of: float) -> Text:
    share = _share(used, of)
    filled = min(BAR, round(share * BAR))
    colour = "green" if share < 0.8 else "yellow" if share < 1.0 else "red"
    return Text("█" * filled + "·" * (BAR - filled) + f" {share:4.0%}", colour)
