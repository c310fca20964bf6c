"""The newest plan of every origin, for answers to clients near other regions; kept on disk for a start without etcd.

Only shares are read from these plans. Which regions a name may resolve to, and which are live, does not depend on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from random import Random

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode
from adapters.store.config_store import Changed, ConfigStore
from adapters.store.informer import Informer
from penstock.planning.plan import RegionPlan
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.last_known_good import StateFile

SAVE_EVERY_S = 10.0
"""Minimum time (s) between two writes to disk: plans arrive each second, and an older one is good enough to start."""

log = structlog.get_logger()


class StoredPlans(msgspec.Struct, frozen=True):
    """The plans as stored on disk, by origin."""

    plans: dict[str, RegionPlan]


class FleetPlans:
    """Follows the plans of all origins. A plan that cannot be read, or is deleted, leaves the last one in use."""

    def __init__(self, store: ConfigStore, state_dir: Path, rng: Random) -> None:
        self._plans: dict[str, RegionPlan] = {}
        self._file = StateFile(state_dir / "dns-plans", StoredPlans)
        self._informer = Informer(store, keys.PLANS, self._changed, rng=rng)
        self._unsaved = asyncio.Event()
        self._saver: asyncio.Task[None] | None = None
        self._logged = False

    @property
    def plans(self) -> Mapping[str, RegionPlan]:
        """The newest plan of each origin."""
        return self._plans

    def start(self) -> None:
        """Load the stored plans, and start to follow the store."""
        stored = self._file.load()
        if stored is not None:
            self._plans.update(stored.plans)
        self._informer.start()
        self._saver = keep_running("plans for DNS", self._keep_saving)

    async def stop(self) -> None:
        """Stop following the store."""
        await self._informer.stop()
        if self._saver is not None:
            await cancel([self._saver])

    def _changed(self, change: Changed) -> None:
        if change.now is None:
            return
        try:
            plan = decode(change.now.value, RegionPlan)
        except CodecError as error:
            if not self._logged:
                self._logged = True
                log.warning("plan of another region not read; its last one stays", key=change.key, reason=str(error))
            return
        if change.key == keys.plan(plan.region) and plan.supersedes(self._plans.get(plan.region)):
            self._plans[plan.region] = plan
            self._unsaved.set()

    async def _keep_saving(self) -> None:
        while True:
            await self._unsaved.wait()
            self._unsaved.clear()
            await self._file.save(StoredPlans(dict(self._plans)))
            await asyncio.sleep(SAVE_EVERY_S)
