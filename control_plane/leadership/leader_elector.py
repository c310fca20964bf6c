"""Acquires and holds leadership: the IO around the state machine of `penstock.leadership`.

The leader key is created with a lease and expires with it. Its create revision is the fencing epoch. The key
`fleet` keeps control planes of another fleet, which use the same etcd by mistake, from leading.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import NamedTuple

import structlog

from adapters.backoff import full_jitter_s
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import ConfigStore, Put, SameKey, StoreError
from adapters.store.informer import Mirror, Seen
from adapters.store.members import Member
from control_plane.leadership.lease_renewal import LeaseRenewal
from penstock.leadership.leadership_states import (
    MIN_LEASE_TTL_S,
    RENEW_S,
    ElectionEvent,
    Leadership,
    LeadershipRole,
    transition,
)

POLL_S = 1.0
"""Interval (s) at which a follower evaluates whether to campaign, even without a change of the leader key: the end of
STAND_BACK_S and a change of eligibility cause no notification."""

STAGGER_S = 0.2
"""Maximum random delay (s) before a campaign, so that control planes do not campaign at the same time."""

BACKOFF_CAP_S = 1.0
"""Maximum delay (s) before the next campaign after a failed one."""

STAND_BACK_S = 5.0
"""Time (s) for which a leader that stepped down does not campaign, so that another control plane is elected."""

RESIGN_S = 1.0
"""Maximum time (s) to revoke the lease; a lease that is not revoked expires."""

_log = structlog.get_logger(__name__)


class Candidate(NamedTuple):
    """This control plane in elections."""

    member: Member
    """The value of the leader key."""
    eligible: Callable[[], bool] = lambda: True
    """Whether this control plane can lead now; it campaigns only then, and resigns when it no longer can."""


class LeaderElector:
    """Acquires leadership when there is no leader, and gives it up when the lease can no longer be proven.

    Args:
        store: the store with the leader key.
        candidate: this control plane.
        rng: source of the jitter.
        lease_ttl_s: time to live (s) of the leader's lease, at least MIN_LEASE_TTL_S.
        clock: monotonic time (s).
        on_change: called after every change of role; must not block.
    """

    def __init__(
        self,
        store: ConfigStore,
        candidate: Candidate,
        *,
        rng: Random,
        lease_ttl_s: int = MIN_LEASE_TTL_S,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[Leadership], None] = lambda _: None,
    ) -> None:
        self._store = store
        self.member = candidate.member
        self._eligible = candidate.eligible
        self._rng = rng
        self._lease_ttl_s = lease_ttl_s
        self._clock = clock
        self._on_change = on_change
        self._key_changed = asyncio.Event()
        self._deposed = asyncio.Event()
        self._lease_id = 0
        self._won_epoch = 0
        self._renewal: LeaseRenewal | None = None
        self._failures = 0
        self._stands_back_until = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.mirror = Mirror(store, keys.LEADER, Member, rng=rng, on_change=self._key_changed.set)
        self.leadership = Leadership(since=clock())

    @property
    def epoch(self) -> int | None:
        """The fencing epoch to write with at this moment; None: do not write."""
        self._apply_renewal()
        return self.leadership.epoch_at(self._clock())

    @property
    def role_age_s(self) -> float:
        """Time (s) since this control plane has its role."""
        return self._clock() - self.leadership.since

    @property
    def leader(self) -> Seen[Member] | None:
        """The holder of the leader key, as last read from the store."""
        return self.mirror.seen("")

    @property
    def was_leader_last(self) -> bool:
        """Whether this process created the leader key as last read; the key may have expired since."""
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
        # A leader key with this URL that this process did not create is from an earlier process of this control plane.
        return leader.value if leader is not None and leader.value.url != self.member.url else None

    def start(self) -> asyncio.Task[None]:
        """Start campaigning. The returned task runs until `stop`; if it ends before, that is a defect."""
        self.mirror.informer.start()
        self._task = asyncio.create_task(self._run(), name="campaign")
        return self._task

    async def stop(self) -> None:
        """Stop. A leader resigns, so that another control plane need not wait for the lease to expire."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        await self.mirror.informer.stop()
        self._enter(ElectionEvent.RESIGNED)
        await self._revoke_lease()

    def fenced(self, epoch: int) -> None:
        """Step down after a fenced write under `epoch`, if that is still the current epoch."""
        if self.leadership.epoch == epoch:
            self._enter(ElectionEvent.FENCED)
            self._deposed.set()

    def step_down(self) -> None:
        """Resign if this control plane leads, and do not campaign for STAND_BACK_S."""
        if self.leadership.role is LeadershipRole.LEADER:
            self._stands_back_until = self._clock() + STAND_BACK_S
            self._enter(ElectionEvent.RESIGNED)
            self._deposed.set()

    async def _run(self) -> None:
        await self.mirror.informer.wait_synced()
        while True:
            await self._wait_for_vacancy()
            if await self._campaign():
                self._failures = 0
                assert self._renewal is not None
                await self._keep_lease(self._renewal)
                await self._revoke_lease()
                continue
            await self._revoke_lease()
            wait_s = full_jitter_s(self._failures, base_s=STAGGER_S, cap_s=BACKOFF_CAP_S, rng=self._rng)
            self._failures += 1
            await asyncio.sleep(wait_s)

    async def _wait_for_vacancy(self) -> None:
        """Return when there is no leader and this control plane is eligible."""
        while True:
            self._key_changed.clear()
            stands_back = self._clock() < self._stands_back_until
            if not self.mirror.has_key and not stands_back and self._eligible():
                await asyncio.sleep(self._rng.uniform(0.0, STAGGER_S))
                if not self.mirror.has_key:
                    return
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await self._key_changed.wait()

    async def _campaign(self) -> bool:
        """Try to create the leader key; return whether this control plane created it."""
        self._enter(ElectionEvent.VACANT)
        sent_at = self._clock()
        try:
            fleet = await self._store.get(keys.FLEET)
            if fleet is not None and not fleet.value:
                self._reject_store()
                return False
            self._lease_id = await self._store.grant_lease(self._lease_ttl_s)
            # Every leader signs the fleet's key again, because the certificates of earlier leaders expire.
            made = await self._store.commit(
                [SameKey(keys.LEADER, 0), SameKey(keys.FLEET, fleet.create_revision if fleet is not None else 0)],
                [
                    Put(keys.LEADER, encode(self.member), self._lease_id),
                    Put(keys.FLEET, self.member.name.encode()),
                ],
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
        loop = asyncio.get_running_loop()

        def lost() -> None:
            # The loop may be closed: nothing waits then.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._deposed.set)

        self._renewal = LeaseRenewal(
            partial(self._store.renew_lease, self._lease_id),
            ttl_s=self._lease_ttl_s,
            sent_at=sent_at,
            clock=self._clock,
            on_lost=lost,
        )
        self._enter(ElectionEvent.WON, epoch=made.revision, sent_at=sent_at)
        return True

    def _reject_store(self) -> None:
        if self._failures == 0:
            _log.error(
                "the store belongs to another fleet, so this control plane does not lead",
                key=keys.FLEET,
                remedy="set a different etcd_prefix; if the certificate that signed the key is revoked or of an "
                "earlier authority, delete the key",
            )
        self._enter(ElectionEvent.LOST)

    async def _keep_lease(self, renewal: LeaseRenewal) -> None:
        """Keep the lease until it can no longer be proven, or the leadership ends for another reason."""
        renewal.start()
        try:
            while self.leadership.role is LeadershipRole.LEADER:
                renewal.permit()
                wait_s = max(0.0, min(RENEW_S, self.leadership.proven_until - self._clock()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._deposed.wait()
                self._deposed.clear()
                # Another task may end the leadership between the timeout and this line.
                if self.leadership.role is LeadershipRole.LEADER:
                    self._check_lease(renewal)
        finally:
            renewal.stop()
            self._renewal = None

    def _check_lease(self, renewal: LeaseRenewal) -> None:
        self._apply_renewal()
        if not self._eligible():
            _log.warning("this control plane can no longer lead", remedy="see the errors of its policy and certificate")
            self._enter(ElectionEvent.RESIGNED)
        elif renewal.lost:
            self._enter(ElectionEvent.EXPIRED)
        elif self._clock() >= self.leadership.proven_until:
            self._enter(ElectionEvent.UNPROVEN)

    def _apply_renewal(self) -> None:
        """Apply the last renewal, unless the leadership has ended meanwhile."""
        if self._renewal is not None and self.leadership.role is LeadershipRole.LEADER:
            self._enter(ElectionEvent.RENEWED, sent_at=self._renewal.sent_at)

    async def _revoke_lease(self) -> None:
        """Revoke the lease, which deletes this control plane's leader key; give up if the store does not respond."""
        lease_id, self._lease_id = self._lease_id, 0
        if lease_id:
            with suppress(StoreError, TimeoutError):
                async with asyncio.timeout(RESIGN_S):
                    await self._store.revoke_lease(lease_id)

    def _enter(self, event: ElectionEvent, *, epoch: int = 0, sent_at: float = 0.0) -> None:
        before = self.leadership
        self.leadership = after = transition(
            before, event, self._clock(), epoch=epoch, sent_at=sent_at, lease_ttl_s=self._lease_ttl_s
        )
        if after.role is not before.role:
            self._on_change(after)
            if LeadershipRole.LEADER in (before.role, after.role):
                _log.info("leadership", role=after.role.value, epoch=after.epoch, why=after.why)
