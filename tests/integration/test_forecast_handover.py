"""A forecast survives a change of leader, on a real etcd."""

from __future__ import annotations

import pytest

from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.config_store import Put
from adapters.store.signed_store import SignedStore
from control_plane.planning import forecast_checkpoint
from control_plane.planning.forecast_checkpoint import SHARDS, SavedForecast
from control_plane.planning.planning_loop import TICK_S
from penstock.planning.forecasting.forecast import DAY_S
from penstock.planning.share_moves import Key
from tests.support import planet
from tests.support.running import running
from tests.unit.control_plane.planning.test_planning import EU, POLICY, Office, whole_fleet

KEY = Key("eu-de", planet.MODEL, "+".join(EU))


async def stored(store: SignedStore) -> dict[str, SavedForecast]:
    return {item.key: decode(item.value, SavedForecast) for item in (await store.list(keys.FORECASTS)).items}


def forecast(office: Office, now: float, ahead_s: float) -> float:
    return office.planning._runner.forecast(POLICY, now, ahead_s)[KEY]


async def test_a_new_leader_knows_the_seasons_that_the_last_one_learned(
    store: SignedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_checkpoint, "SAVE_EVERY_S", SHARDS * TICK_S)
    first, second = Office(store), Office(store)
    async with running(first.overrides.mirror.informer) as one, running(second.overrides.mirror.informer) as two:
        await one.wait_synced()
        await two.wait_synced()
        first.now = 3 * DAY_S
        epoch = await first.elect()
        await first.tick(*whole_fleet())
        forecaster = first.planning._runner.forecaster
        for quarter in range(2 * 96):
            first.now += 900.0
            forecaster.observe({KEY: 20.0 if quarter % 96 > 48 else 10.0}, first.now)
        for _ in range(SHARDS + 1):
            await first.tick(*whole_fleet())
        assert [each.key for shard in (await stored(store)).values() for each in shard.series] == [KEY]

        second.now = first.now + 3.0
        await second.elect()
        await second.tick(*whole_fleet())
        for ahead_s in (60.0, DAY_S / 4, DAY_S / 2):
            expected = forecast(first, second.now, ahead_s)
            assert forecast(second, second.now, ahead_s) == pytest.approx(expected, rel=0.2), ahead_s
        assert forecast(second, second.now, DAY_S / 2) < 8.0, "the season, and not the rate of 10"

        before = await stored(store)
        forecaster.observe({KEY: 9_999.0}, first.now + 1.0)
        for number in range(SHARDS):
            await first.planning._forecasts.save(forecaster, epoch, first.now + 100.0 * (number + 1))
        assert await stored(store) == before, "the last leader is fenced"


async def test_an_invalid_forecast_stops_no_leader(store: SignedStore) -> None:
    await store.commit([], [Put(keys.forecast(3), b'{"version": 9, "kind": "SavedForecast", "value": {}}')])
    office = Office(store)
    async with running(office.overrides.mirror.informer) as informer:
        await informer.wait_synced()
        await office.elect()
        for _ in range(2):
            await office.tick(*whole_fleet())
        assert await office.shares() == {"eu-de": 1.0}
