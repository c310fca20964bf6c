"""Renewals of the leader's lease in a thread: a blocked event loop delays none, and a stopped one ends them."""

from __future__ import annotations

import time
from itertools import count
from random import Random

import pytest

from adapters.store.config_store import LeaseLost, StoreUnavailable
from adapters.store.members import Member
from control_plane.leadership import lease_renewal
from control_plane.leadership.leader_elector import Candidate, LeaderElector
from control_plane.leadership.lease_renewal import PERMIT_S, LeaseRenewal
from lab.memory_store import MemoryStore
from penstock.leadership.leadership_states import PROOF_MARGIN_S
from tests.support.api_app import STEADY_LEASE_S
from tests.support.running import running
from tests.support.wait import until

TTL_S = 2.0
STEP_S = 0.1
"""Seconds by which each reading of the clock is later than the one before."""


class CountedRenewals(MemoryStore):
    renewals = 0

    def renew_lease(self, lease_id: int, timeout_s: float) -> None:
        super().renew_lease(lease_id, timeout_s)
        self.renewals += 1


def block_until_renewed(store: CountedRenewals, renewals: int) -> None:
    """Block the event loop until a lease was renewed so often."""
    while store.renewals < renewals:
        time.sleep(0.01)


async def test_a_blocked_event_loop_delays_no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewal, "RENEW_S", 0.01)
    store = CountedRenewals()
    member = Member("a", "http://a")
    elector = LeaderElector(store, Candidate(member), rng=Random(1), lease_ttl_s=STEADY_LEASE_S)
    async with running(elector):
        await until(lambda: elector.epoch is not None)
        epoch, proven = elector.epoch, elector.leadership.proven_until
        before = store.renewals
        block_until_renewed(store, before + 3)
        assert elector.epoch == epoch
        assert elector.leadership.proven_until > proven, "known without another turn of the event loop"
    await store.close()


class Renewed:
    """A renewal whose clock advances with each reading, and the results of its calls."""

    def __init__(self, *failures: Exception | None) -> None:
        self.lost = 0
        self.calls = 0
        self._failures = list(failures)
        readings = count()
        self.renewal = LeaseRenewal(
            self._renew, ttl_s=TTL_S, sent_at=0.0, clock=lambda: next(readings) * STEP_S, on_lost=self._on_lost
        )

    def _renew(self, timeout_s: float) -> None:
        assert 0.0 < timeout_s < TTL_S
        self.calls += 1
        if self._failures and (failure := self._failures.pop(0)) is not None:
            raise failure

    def _on_lost(self) -> None:
        self.lost += 1


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewal, "RETRY_S", 0.0)


def test_a_stopped_event_loop_loses_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewal, "RENEW_S", 0.0)
    renewed = Renewed()
    renewed.renewal._run()
    assert renewed.calls > 10
    assert PERMIT_S - TTL_S < renewed.renewal.sent_at <= PERMIT_S + STEP_S
    assert (renewed.renewal.lost, renewed.lost) == (False, 0)


def test_a_failed_renewal_is_tried_again_until_the_lease_may_have_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewal, "RENEW_S", 0.0)
    short = Renewed(*[StoreUnavailable("away")] * 2)
    short.renewal._run()
    assert short.renewal.sent_at > TTL_S
    long = Renewed(*[StoreUnavailable("away")] * 100)
    long.renewal._run()
    assert (long.renewal.sent_at, long.renewal.lost) == (0.0, False)
    assert 2 <= long.calls < (TTL_S - PROOF_MARGIN_S) / STEP_S


def test_a_lost_lease_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewal, "RENEW_S", 0.0)
    renewed = Renewed(None, LeaseLost("gone"))
    renewed.renewal._run()
    assert (renewed.calls, renewed.renewal.lost, renewed.lost) == (2, True, 1)
    stopped = Renewed(LeaseLost("gone"))
    stopped.renewal.stop()
    stopped.renewal._run()
    assert (stopped.calls, stopped.lost) == (0, 0)
