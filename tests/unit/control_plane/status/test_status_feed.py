"""The status feed sends a complete status first, then only changes, and reads nothing without followers."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from control_plane.policy.source.revision import Origin
from control_plane.status import status_feed
from control_plane.status.status import ArcStatus, PolicyStatus, RegionStatus, Status, StoreStatus
from control_plane.status.status_feed import StatusFeed
from penstock.health.region_health import RegionState
from penstock.planning.plan import ArcReason
from tests.support.wait import PATIENCE_S, until


def region(name: str, state: RegionState = RegionState.HEALTHY) -> RegionStatus:
    return RegionStatus(name, "Frankfurt", "DE", 50.0, 8.0, state, 60.0, 0.5, (), ())


FIRST = Status(
    at=1.0,
    name="north",
    url="http://north",
    leading=True,
    role="leader",
    role_age_s=1.0,
    why="",
    epoch=1,
    leader=None,
    store=StoreStatus(True),
    policy=PolicyStatus("ab", Origin.FOLDER, ()),
    plan=None,
    regions=(region("a"), region("b")),
    agents=(),
    control_planes=(),
    arcs=(ArcStatus("a", "b", "m", "a+b", 1.0, ArcReason.SPILLOVER),),
)


class Fleet:
    """A status that tests change, and a feed that has read it."""

    def __init__(self) -> None:
        self.status: Status | None = FIRST
        self.reads = 0
        self.feed = StatusFeed(self.read, self.updated)
        self._update = asyncio.Event()

    async def read(self) -> Status:
        self.reads += 1
        if self.status is None:
            raise RuntimeError("unreadable")
        return self.status

    def updated(self) -> None:
        self._update.set()

    async def next(self) -> None:
        """Wait for two updates, of which the second was read after this call."""
        for _ in range(2):
            self._update.clear()
            async with asyncio.timeout(PATIENCE_S):
                await self._update.wait()

    def since(self, version: int) -> dict[str, Any]:
        found = msgspec.json.decode(self.feed.since(version))
        assert isinstance(found, dict)
        return found


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(status_feed, "INTERVAL_S", 0.001)
    return Fleet()


async def test_the_first_update_is_complete_and_the_next_has_the_changes(fleet: Fleet) -> None:
    with fleet.feed.following():
        await fleet.next()
        first, seen = fleet.since(0), fleet.feed.version
        assert {"at", "policy", "regions/a", "regions/b", "arcs/a"} <= first["parts"].keys()
        assert first["parts"]["arcs/a"][0]["server"] == "b"
        fleet.status = msgspec.structs.replace(FIRST, at=2.0, regions=(region("a", RegionState.FAILED),))
        await fleet.next()
        update = fleet.since(seen)
        assert update["parts"].keys() == {"at", "regions/a"}
        assert (update["parts"]["regions/a"]["state"], update["gone"]) == ("failed", ["regions/b"])
        assert fleet.since(0)["gone"] == []
        assert "regions/b" not in fleet.since(0)["parts"]


async def test_nothing_is_read_or_kept_without_followers(fleet: Fleet) -> None:
    assert not fleet.feed.has_news(0)
    with fleet.feed.following(), fleet.feed.following():
        await fleet.next()
        assert fleet.feed.has_news(0)
    reads = fleet.reads
    for _ in range(3):
        await asyncio.sleep(0)
    assert fleet.reads == reads
    assert not fleet.feed.has_news(0)
    with fleet.feed.following():
        await fleet.next()
        assert fleet.feed.has_news(0)


async def test_a_failed_read_of_the_status_is_retried(fleet: Fleet) -> None:
    fleet.status = None
    with fleet.feed.following():
        await until(lambda: fleet.reads >= 2)
        assert not fleet.feed.has_news(0)
        fleet.status = FIRST
        await fleet.next()
        assert fleet.since(0)["parts"]["name"] == "north"
