"""The epoch of plans: the leader's fencing epoch plus a base, larger than the epoch of any plan that an agent runs.

The fencing epoch is a revision of the store. A store that was wiped or restored from a backup has smaller revisions, so
every agent with a plan of a larger epoch would reject its plans. A base in the store is therefore added to the fencing
epoch, and raised when an agent reports a newer plan than this leader has made. Only the leader and `penstock restore`
write the base, and a leader never lowers it. A report of an epoch above MAX_RAISING_EPOCH does not raise the base, so
that no agent can use up the numbers that are left for later leaders.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import structlog

from adapters.store import keys
from adapters.store.codec import CodecError, decode, encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError, Unchanged
from penstock.fleet.report import AgentReport
from penstock.fleet.snapshot import HeldReport

MAX_RAISING_EPOCH = 2**52
"""Maximum reported epoch that raises the base: half of all valid numbers, far above the revisions of any store."""

_log = structlog.get_logger(__name__)


class EpochBase(msgspec.Struct, frozen=True):
    """The number that is added to the fencing epochs of this store."""

    base: int


class PlanEpoch:
    """The epoch of one leadership's plans; each leadership begins with `adopt`."""

    def __init__(self, store: ConfigStore) -> None:
        self._store = store
        self._fencing = 0
        self._base = 0
        self._mod_revision = 0
        self._ignored: set[tuple[str, str]] = set()
        """Region and name of agents whose reported epoch is ignored, and logged."""

    @property
    def value(self) -> int:
        """The epoch of published plans."""
        return self._base + self._fencing

    async def adopt(self, fencing_epoch: int) -> None:
        """Begin a leadership with its fencing epoch.

        Raises:
            StoreError: the store cannot be read, or the base cannot be decoded; call again.
        """
        self._fencing = fencing_epoch
        item = await self._store.get(keys.EPOCH_BASE)
        self._base, self._mod_revision = 0, 0
        self._ignored.clear()
        if item is not None:
            try:
                self._base = decode(item.value, EpochBase).base
            except CodecError as error:
                raise StoreError(f"{keys.EPOCH_BASE}: {error}") from None
            self._mod_revision = item.mod_revision

    async def raise_above(self, agents: Iterable[HeldReport], generation: int) -> None:
        """Raise the epoch, if needed, so that new plans supersede every plan that an agent runs.

        Args:
            agents: the newest report of each agent.
            generation: the newest generation of this store's plans.

        Raises:
            StoreError: the store cannot be written, or another control plane leads.
        """
        newest = (self.value, generation)
        for held in agents:
            reported = (held.report.plan_epoch, held.report.plan_generation)
            if reported <= newest:
                continue
            if reported[0] > MAX_RAISING_EPOCH:
                self._warn_of(held.report)
            else:
                newest = reported
        if newest == (self.value, generation):
            return
        base = newest[0] + 1 - self._fencing
        done = await self._store.commit(
            [SameKey(keys.LEADER, self._fencing), Unchanged(keys.EPOCH_BASE, self._mod_revision)],
            [Put(keys.EPOCH_BASE, encode(EpochBase(base)))],
        )
        if not done.succeeded:
            raise StoreError("the base of plan epochs was not raised: another control plane leads, or has raised it")
        _log.warning("agents run plans of an earlier store, epoch base raised", agents_epoch=newest[0], base=base)
        self._base, self._mod_revision = base, done.revision

    def _warn_of(self, report: AgentReport) -> None:
        """Log, once for each agent since `adopt`, that its reported epoch is ignored."""
        agent = (report.region, report.agent)
        if agent not in self._ignored:
            self._ignored.add(agent)
            _log.warning(
                "reported plan epoch ignored: it is larger than any store's revision; check the agent, and revoke its"
                " certificate if it may be stolen",
                region=report.region,
                agent=report.agent,
                plan_epoch=report.plan_epoch,
            )
