"""Concurrent changes of overrides by several control planes never exceed what one control plane permits."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.access.callers import Caller, Role
from control_plane.audit.audit_log import AuditLog
from control_plane.overrides.override_store import OverrideRefused, OverrideStore
from lab.memory_store import MemoryStore
from penstock.log_chains.audit_log_chain import verify_chain
from penstock.overrides.guard_rails import tenants_by_class
from penstock.overrides.override_effects import Interventions
from penstock.overrides.overrides import Override
from penstock.policy.kinds.operations import GuardRails
from tests.support import planet
from tests.support.examples import examples
from tests.support.faulty_store import FaultyStore
from tests.support.override_builders import drain, fail_over, weight
from tests.support.planet import MODEL

REGIONS = ("eu-de", "eu-es", "us-east")
POLICY = msgspec.structs.replace(planet.policy(), guard_rails=GuardRails(max_withdrawn_share=1.0))
EVEN = {(region, MODEL): 10.0 for region in REGIONS}
DUTY = Caller("duty", Role.OPERATOR)

wanted = st.builds(
    lambda make, region, origin: make(region, origin=origin),
    st.sampled_from((drain, fail_over, lambda region, **fields: weight(region, 0.0, **fields))),
    st.sampled_from(REGIONS),
    st.sampled_from((None, None, *REGIONS)),
)
steps = st.lists(st.one_of(wanted, st.just("lift")), min_size=1, max_size=4)


class Desk:
    """One operator at one control plane."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        shared = FaultyStore(store)
        self.audit = AuditLog(shared, lambda: 1.0)
        self.ledger = OverrideStore(shared, self.audit, f"cp-{number}", rng=Random(number), clock=lambda: 1.0)
        self._number = number
        self._set: list[str] = []

    async def work(self, some: list[Override | str]) -> None:
        for at, step in enumerate(some):
            if not isinstance(step, str):
                await self._begin(msgspec.structs.replace(step, id=f"{self._number}-{at}"))
            elif self._set:
                await self.ledger.lift(DUTY, self._set.pop(), "done", lambda there: None)

    async def _begin(self, override: Override) -> None:
        try:
            await self.ledger.begin(DUTY, override, POLICY, EVEN)
            self._set.append(override.id)
        except OverrideRefused:
            pass


@given(st.lists(steps, min_size=2, max_size=3))
@settings(max_examples=examples(60))
def test_no_class_is_emptied_and_every_change_is_audited(some: list[list[Override | str]]) -> None:
    async def run() -> None:
        store = MemoryStore()
        desks = [Desk(store, number) for number in range(len(some))]
        await asyncio.gather(*(desk.work(steps) for desk, steps in zip(desks, some, strict=True)))
        left = await desks[0].ledger.read()
        meant = Interventions(left.holding(1.0), 0.0, 1.0)
        for residency in tenants_by_class(POLICY):
            for origin in residency.regions:
                assert residency.regions - meant.of(origin, MODEL).closed
        entries = [entry async for entry in desks[0].audit.entries()]
        assert verify_chain(entries, head=await desks[0].audit.head()) is None
        lifts = {entry.target for entry in entries if entry.action == "override.lift"}
        assert {override.id for override in left.holding(1.0)} == {entry.target for entry in entries} - lifts
        await store.close()

    asyncio.run(run())
