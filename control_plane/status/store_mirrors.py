"""Copies of store keys that the API shows. Planning does not use them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from adapters.store import keys
from adapters.store.config_store import ConfigStore
from adapters.store.informer import Informer, Mirror
from adapters.store.members import AgentMember, Member
from penstock.planning.plan import RegionPlan
from penstock.records.audit_chain import AuditEntry
from penstock.rollout.state_machine import Rollout

BACKOFF_CAP_S = 3.0
"""Maximum time (s) between two attempts to read the store after it failed."""


class StoreMirrors:
    """Mirrors of registered agents and control planes, plan slices, the newest rollout and the audit head.

    Args:
        store: the fleet's configuration store.
        rng: source of the backoff's jitter.
        on_audit: called after each new audit entry; must not block.
    """

    def __init__(self, store: ConfigStore, rng: Random, on_audit: Callable[[], None]) -> None:
        self.agents = Mirror(store, keys.AGENTS, AgentMember, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.members = Mirror(store, keys.CONTROL_PLANES, Member, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.plans = Mirror(store, keys.PLANS, RegionPlan, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.rollout = Mirror(store, keys.ROLLOUT, Rollout, rng=rng, backoff_cap_s=BACKOFF_CAP_S)
        self.audit_head = Mirror(
            store, keys.AUDIT_HEAD, AuditEntry, rng=rng, on_change=on_audit, backoff_cap_s=BACKOFF_CAP_S
        )

    @property
    def informers(self) -> tuple[Informer, ...]:
        """The informers to start and stop."""
        mirrors = (self.agents, self.members, self.plans, self.rollout, self.audit_head)
        return tuple(mirror.informer for mirror in mirrors)
