"""Campaigns for leadership and holds it: the IO around the state machine of `leader_election`.

The leader key is created with a lease and expires with it. Its create revision is the fencing epoch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random

import structlog

from adapters.backoff import full_jitter_s
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, LeaseLost, Put, SameKey, StoreError
from adapters.store.members import Member
from adapters.store.mirror import Mirror, Seen
from control_plane.leadership.leader_election import LEASE_TTL_S, RENEW_S, ElectionEvent, Leadership, Role, transition

LOOK_S = 1.0
"""A follower looks at the leader key this often (s) even without a notification of a change."""

STAGGER_S = 0.2
"""Candidates start apart by up to this (s), so that most need not campaign at all."""

RETRY_S = 0.2
"""Time (s) between two tries to renew a lease that the store did not answer for."""

BACKOFF_CAP_S = 1.0
"""Longest wait (s) before standing again after the store did not answer."""

RESIGN_S = 1.0
"""How long (s) a resignation may take; after that the lease is left to expire."""

_log = structlog.get_logger(__name__)


class LeaderElector:
    """Acquires leadership when there is no leader, and gives it up when the lease can no longer be proven.

    Args:
        store: where the leader key is.
        member: the value of the leader key: this control plane.
        eligible: whether this control plane can lead now; it campaigns only then.
        rng: source of the jitter.
        clock: seconds, monotonic.
        on_change: called after every change of role; must not block.
    """

    def __init__(
        self,
        store: ConfigStore,
        member: Member,
        *,
        eligible: Callable[[], bool],
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[Leadership], None] = lambda _: None,
    ) -> None:
        self._store = store
        self.member = member
        self._eligible = eligible
        self._rng = rng
        self._clock = clock
        self._on_change = on_change
        self._stirred = asyncio.Event()
        self._deposed = asyncio.Event()
        self._lease_id = 0
        self._won_epoch = 0
        self._failures = 0
        self._task: asyncio.Task[None] | None = None
        self.mirror = Mirror(store, keys.LEADER, Member, rng=rng, on_change=self._stirred.set)
        self.belief = Leadership(since=clock())

    @property
    def epoch(self) -> int | None:
        """The fencing epoch to write with at this moment; None: do not write."""
        return self.belief.epoch_at(self._clock())

    @property
    def leader(self) -> Seen[Member] | None:
        """The holder of the leader key, as last read from the store."""
        return self.mirror.seen("")

    @property
    def was_leader_last(self) -> bool:
        """Whether the leader key, as last seen, was made by this process: it may be gone, and no other is known."""
        leader = self.leader
        return leader is not None and leader.create_revision == self._won_epoch

    @property
    def authority(self) -> Member | None:
        """The control plane that agents report to; None while no leader is known.

        While the store is unreachable this is the last leader, which no longer leads but still receives the reports.
        """
        if self.epoch is not None or self.was_leader_last:
            return self.member
        leader = self.leader
        # A leader key with this URL that this process did not create is left from the process before it.
        return leader.value if leader is not None and leader.value.url != self.member.url else None

    def start(self) -> asyncio.Task[None]:
        """Begin, in the task returned, which ends before `stop` only by a defect."""
        self.mirror.informer.start()
        self._task = asyncio.create_task(self._run(), name="campaign")
        return self._task

    async def stop(self) -> None:
        """End; resign where leading, so that another need not wait for the lease to expire."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        await self.mirror.informer.stop()
        self._enter(ElectionEvent.RESIGNED)
        await self._let_go()

    def fenced(self, epoch: int) -> None:
        """A write under `epoch` found the leader key to be another's: step down, if that is still our epoch."""
        if self.belief.epoch == epoch:
            self._enter(ElectionEvent.FENCED)
            self._deposed.set()

    async def _run(self) -> None:
        await self.mirror.informer.wait_synced()
        while True:
            await self._vacancy()
            if await self._stand():
                self._failures = 0
                await self._hold()
                await self._let_go()
                continue
            await self._let_go()
            wait_s = full_jitter_s(self._failures, base_s=STAGGER_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
            self._failures += 1
            await asyncio.sleep(wait_s)

    async def _vacancy(self) -> None:
        """Returns when there is no leader and this control plane is eligible."""
        while True:
            self._stirred.clear()
            if not self.mirror.has_key and self._eligible():
                await asyncio.sleep(self._rng.uniform(0.0, STAGGER_S))
                if not self.mirror.has_key:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stirred.wait()

    async def _stand(self) -> bool:
        """Try to make the leader key; whether it is ours now."""
        self._enter(ElectionEvent.VACANT)
        sent_at = self._clock()
        try:
            self._lease_id = await self._store.grant_lease(LEASE_TTL_S)
            made = await self._store.commit(
                [SameKey(keys.LEADER, 0)], [Put(keys.LEADER, encode(self.member), self._lease_id)]
            )
        except StoreError as error:
            if self._failures == 0:
                _log.warning("campaign failed", reason=str(error))
            self._enter(ElectionEvent.UNKNOWN)
            return False
        if not made.succeeded:
            self._enter(ElectionEvent.LOST)
            return False
        self._deposed.clear()
        self._won_epoch = made.revision
        self._enter(ElectionEvent.WON, epoch=made.revision, sent_at=sent_at)
        return True

    async def _hold(self) -> None:
        """Renew the lease until it cannot be, or a write was fenced."""
        wait_s = RENEW_S
        while self.belief.role is Role.LEADER:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, max(0.0, self.belief.proven_until - self._clock()))):
                    await self._deposed.wait()
                return
            wait_s = await self._renew()

    async def _renew(self) -> float:
        """Renew once, within what is proven; returns when (s) to try again."""
        sent_at = self._clock()
        if sent_at >= self.belief.proven_until:
            self._enter(ElectionEvent.UNPROVEN)
            return 0.0
        try:
            async with asyncio.timeout(self.belief.proven_until - sent_at):
                await self._store.keep_alive(self._lease_id)
        except LeaseLost:
            self._unless_deposed(ElectionEvent.EXPIRED)
        except (StoreError, TimeoutError) as error:
            _log.warning("lease not renewed", reason=str(error) or "no answer in time")
            return RETRY_S
        else:
            # An answer that came too late proves nothing: a pause of this process may lie between.
            late = self._clock() >= self.belief.proven_until
            self._unless_deposed(ElectionEvent.UNPROVEN if late else ElectionEvent.RENEWED, sent_at=sent_at)
        return RENEW_S

    def _unless_deposed(self, event: ElectionEvent, sent_at: float = 0.0) -> None:
        """Follow an answer to a renewal, unless a fenced write has ended the leadership meanwhile."""
        if self.belief.role is Role.LEADER:
            self._enter(event, sent_at=sent_at)

    async def _let_go(self) -> None:
        """End our lease, and with it a leader key of ours, as far as the store can be reached."""
        lease_id, self._lease_id = self._lease_id, 0
        if lease_id:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(RESIGN_S):
                    await self._store.revoke_lease(lease_id)

    def _enter(self, event: ElectionEvent, *, epoch: int = 0, sent_at: float = 0.0) -> None:
        before, self.belief = self.belief, transition(self.belief, event, self._clock(), epoch=epoch, sent_at=sent_at)
        if self.belief.role is not before.role:
            self._on_change(self.belief)
            if Role.LEADER in (before.role, self.belief.role):
                _log.info("leadership", role=self.belief.role.value, epoch=self.belief.epoch, why=self.belief.why)
