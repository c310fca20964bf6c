"""Purges of the result cache over the API and the CLI, and how agents learn of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import httpx
import pytest

from adapters.store import keys
from adapters.store.config_store import Put
from control_plane.daemon import ControlPlane
from penstock.result_cache.cache_purges import CachePurges
from regional_agent.result_cache.purge_follower import PurgeFollower
from tests.support.api_app import as_, is_problem, leading_api
from tests.support.wait import until

PATH = "/v1/result-cache/purges"
MODEL = "llama-3.1-8b"


@pytest.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[httpx.AsyncClient]:
    async with leading_api(control_plane) as client:
        yield client


async def test_a_purge_reaches_agents_and_the_audit_log(api: httpx.AsyncClient, control_plane: ControlPlane) -> None:
    follower = PurgeFollower(control_plane.overrides._store, Random(1))
    # What was purged is not known before the store has been read.
    assert follower.purges is None
    follower.start()
    await until(lambda: follower.purges == CachePurges())
    purged = await api.post(PATH, json={"model": MODEL, "reason": "new weights"}, headers=as_("duty"))
    assert purged.status_code == 201, purged.text
    purge = purged.json()
    assert (purge["model"], purge["author"], purge["reason"]) == (MODEL, "duty", "new weights")
    await until(lambda: follower.purges is not None and follower.purges.newest(MODEL) == purge["id"])
    listed = await api.get(PATH, headers=as_("guest"))
    assert listed.json() == {"items": [purge], "next_cursor": None}
    every = await api.post(PATH, json={"model": "*", "reason": "all engines"}, headers=as_("duty"))
    await until(lambda: follower.purges is not None and follower.purges.newest("any") == every.json()["id"])
    # Purges in a newer format: which responses are purged is unknown.
    await control_plane.overrides._store.commit([], [Put(keys.CACHE_PURGES, b"{")])
    await until(lambda: follower.purges is None)
    entries = (await api.get("/v1/audit")).json()["items"]
    assert [entry["action"] for entry in entries if "cache" in entry["action"]] == ["result-cache.purge"] * 2
    await follower.stop()


@pytest.mark.parametrize(
    ("body", "caller", "status"),
    [
        ({"model": MODEL, "reason": "r"}, "guest", 403),
        ({"model": MODEL, "reason": "r"}, "germany", 403),
        ({"model": "unknown", "reason": "r"}, "duty", 422),
        ({"model": "", "reason": "r"}, "duty", 422),
        ({"model": MODEL}, "duty", 422),
    ],
)
async def test_a_refused_purge_changes_nothing(
    api: httpx.AsyncClient, body: dict[str, str], caller: str, status: int
) -> None:
    assert is_problem(await api.post(PATH, json=body, headers=as_(caller)), status)
    assert (await api.get(PATH)).json()["items"] == []
