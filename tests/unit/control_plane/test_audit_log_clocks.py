"""The audit log of a fleet in which the clock of a control plane was ahead."""

from __future__ import annotations

import time

from adapters.access.callers import Caller, Role
from adapters.store.signed_store import SignedStore
from control_plane.audit.audit_log import AuditedAction, AuditLog
from lab.memory_store import MemoryStore
from penstock.log_chains.audit_log_chain import AuditEntry
from tests.support.identities import control_plane_keyring

MADE = AuditedAction(Caller("ops", Role.OPERATOR), "override.lift", "drain-1", "a test")


async def test_an_audited_change_of_a_clock_ahead_leaves_later_changes_possible() -> None:
    etcd = MemoryStore()

    def log(ahead_s: float) -> AuditLog:
        return AuditLog(SignedStore(etcd, control_plane_keyring(), clock=lambda: time.time() + ahead_s))

    right, other = log(0.0), log(0.0)
    for each in (right, log(3600.0), right, other, right):
        await each.record(MADE)
    found = [entry async for entry in other.entries()]
    assert [entry.seq for entry in found if isinstance(entry, AuditEntry)] == [1, 2, 3, 4, 5]
