"""The demand forecast, saved in the store, so that a new leader knows the seasons that earlier leaders learned.

The series are divided into shards. A shard is written every SAVE_EVERY_S, at most one at a tick, and only by the leader
in office.
"""

from __future__ import annotations

from zlib import crc32

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError
from penstock.planning.forecasting.forecast import SEASONS, Forecaster
from penstock.planning.forecasting.forecast_state import SavedSeries, by_rate, restore, saved
from penstock.planning.share_moves import Key

SHARDS = 32
"""Number of shards; a full one has about 400 KiB."""

SAVE_EVERY_S = 120.0
"""Interval (s) at which each shard is saved."""

_log = structlog.get_logger(__name__)


class SavedForecast(msgspec.Struct, frozen=True):
    """One shard."""

    seasons: int = SEASONS
    """Parts of a day. A shard with another number was written by another release, and is ignored."""
    series: tuple[SavedSeries, ...] = ()


class ForecastCheckpoint:
    """Saves and loads the forecast.

    Args:
        store: the fleet's configuration store.
    """

    def __init__(self, store: ConfigStore) -> None:
        self._store = store
        self._next = 0
        self._saved_at = float("-inf")
        self._filled: set[int] = set()
        """The shards that have series in the store."""

    async def load(self, forecaster: Forecaster, now: float) -> None:
        """Continue the forecast in the store, at the start of a leadership.

        Args:
            forecaster: a forecaster without measurements.
            now: Unix time, in seconds.

        Raises:
            StoreError: the store is unavailable.
        """
        found: list[SavedSeries] = []
        self._filled, self._saved_at = set(), now
        for item in (await self._store.list(keys.FORECASTS)).items:
            try:
                shard = decode(item.value, SavedForecast)
            except CodecError as error:
                _log.warning("stored forecast ignored", key=item.key, reason=str(error))
                continue
            if shard.seasons != SEASONS:
                _log.warning("stored forecast ignored", key=item.key, reason=f"it has {shard.seasons} parts of a day")
                continue
            found += shard.series
            self._filled |= {number for number in range(SHARDS) if keys.forecast(number) == item.key}
        if left_out := restore(forecaster, found, now):
            _log.warning("series of the stored forecast ignored", impossible=left_out, of=len(found))

    async def save(self, forecaster: Forecaster, epoch: int, now: float) -> None:
        """Save the next shard, if that is due.

        Args:
            epoch: fencing epoch of the leader.
            now: Unix time, in seconds.
        """
        if now - self._saved_at < SAVE_EVERY_S / SHARDS:
            return
        self._saved_at, shard = now, self._next
        self._next = (shard + 1) % SHARDS
        series = saved(forecaster, (key for key in by_rate(forecaster) if _shard_of(key) == shard))
        if not series and shard not in self._filled:
            return
        try:
            put = Put(keys.forecast(shard), encode(SavedForecast(SEASONS, series)))
            await self._store.commit([SameKey(keys.LEADER, epoch)], [put])
        except (CodecError, StoreError) as error:
            _log.warning("forecast not saved", shard=shard, reason=str(error))
            return
        self._filled.add(shard)


def _shard_of(key: Key) -> int:
    return crc32("\n".join(key).encode()) % SHARDS
