"""The leader's rollouts of versions on a store: shares, changes of the leader, operators, and the audit log."""

from __future__ import annotations

import msgspec
import pytest

from adapters.access.callers import Caller, Role
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put
from control_plane.audit.audit_log import AuditLog, ChangeRefused
from control_plane.rollout.model_rollout_resource import model_rollout_statuses
from control_plane.rollout.model_rollouts import ModelRollouts, NoSuchRollout, NotPossible, StoredModelRollout
from lab.memory_store import MemoryStore
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.counts.version_counts import VersionCounts, VersionReport
from penstock.fleet.report import PoolReport
from penstock.fleet.snapshot import Snapshot, add_report
from penstock.log_chains.audit_log_chain import AuditEntry
from penstock.planning.plan import VersionShare
from penstock.policy.kinds.model_rollouts import ModelRollout, ShadowRequests
from penstock.policy.kinds.models import Model, ModelVersions, Version
from penstock.policy.policy import Policy
from penstock.rollout.model_rollout import ModelEvent, ModelPhase
from tests.support import planet
from tests.support.reports import report

ROLLOUT = ModelRollout("chat", "v2", (10.0, 100.0), prepare_s=2, step_s=4, watch_s=2, min_requests=10)
POLICY = msgspec.structs.replace(
    planet.policy(),
    models={name: Model(name) for name in ("v1", "v2")},
    versions={"chat": ModelVersions("chat", (Version("v1", 100.0), Version("v2", 0.0)))},
    model_rollouts={"chat": ROLLOUT},
)
WITHOUT = msgspec.structs.replace(POLICY, model_rollouts=msgspec.UNSET)
OPERATOR = Caller("ann", Role.OPERATOR)


class World:
    """A store, one agent's counters, and one leader at a time."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.audit = AuditLog(self.store, lambda: self.now)
        self.now, self.seq, self.epoch = 1000.0, 0, 0
        self.snapshot = Snapshot()
        self.counts = {"v1": VersionCounts(), "v2": VersionCounts()}
        self.failing: set[str] = set()

    async def take_over(self) -> None:
        await self.store.commit([], [Delete(keys.LEADER)])
        self.epoch = (await self.store.commit([], [Put(keys.LEADER, encode("me"))])).revision
        self.rollouts = ModelRollouts(self.store, self.audit, "cp-1")

    async def pass_s(self, seconds: int, policy: Policy = POLICY) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.seq += 1
            for model in self.counts:
                failed = 10 if model in self.failing else 0
                self.counts[model] += VersionCounts(RequestCounts(10, failed, 10 - failed, (10 - failed) * 0.1))
            reports = tuple(VersionReport("chat", model, counts) for model, counts in self.counts.items())
            pools = tuple(PoolReport(model, 2, 2, 16, 4, 1.0) for model in self.counts)
            seen = msgspec.structs.replace(report("eu-de", seq=self.seq), versions=reports, pools=pools)
            self.snapshot, _ = add_report(self.snapshot, seen, self.now, POLICY)
            await self.step(policy)

    async def step(self, policy: Policy = POLICY, *, may_forget: bool = True) -> None:
        await self.rollouts.step(self.epoch, self.now, self.snapshot, policy, may_forget=may_forget)

    async def act(self, event: ModelEvent) -> ModelPhase:
        seen = (await self.rollouts.stored())["chat"]
        return (await self.rollouts.advance(OPERATOR, POLICY, seen, event, "because", self.now)).phase

    def share(self) -> tuple[float, float] | None:
        shares = self.rollouts.shares(POLICY)
        return (shares[0].percent, shares[0].shadow_percent) if shares else None


@pytest.fixture
async def world() -> World:
    world = World()
    await world.take_over()
    return world


async def actions(world: World) -> list[tuple[str, str]]:
    entries = await world.audit.page(1, 100)
    return [(entry.caller, entry.action) for entry in entries if isinstance(entry, AuditEntry)]


async def test_shares_rise_and_each_transition_is_audited(world: World) -> None:
    seen = []
    for _ in range(14):
        await world.pass_s(1)
        seen.append(world.share())
    assert list(dict.fromkeys(seen)) == [(0.0, 0.0), (10.0, 0.0), (100.0, 0.0)]
    phases = ["preparing", "step", "watch", "done"]
    assert await actions(world) == [("cp-1", f"model_rollout.{phase}") for phase in phases]
    (shown,) = model_rollout_statuses(await world.rollouts.stored(), POLICY, world.snapshot, world.now)
    assert (shown.rollout.phase, shown.rollout.actions) == (ModelPhase.DONE, (ModelEvent.ROLL_BACK,))


async def test_a_failing_version_returns_to_the_policys_percentages(world: World) -> None:
    await world.pass_s(5)
    assert world.share() == (10.0, 0.0)
    world.failing.add("v2")
    await world.pass_s(2)
    assert world.share() is None
    stored = (await world.rollouts.stored())["chat"].state
    assert stored is not None
    assert "of requests fail, 0.0% of the old version at the same time" in stored.why
    assert await world.act(ModelEvent.RESUME) is ModelPhase.PREPARING


async def test_what_a_rollout_waits_for_is_stated_until_it_is_done(world: World) -> None:
    seen = []
    for _ in range(14):
        await world.pass_s(1)
        seen += [outlook.text for outlook in world.rollouts.outlooks]
    assert world.rollouts.outlooks == ()
    assert [text.split(" ")[0] for text in seen] == sorted(text.split(" ")[0] for text in seen)
    assert seen[0].startswith("preparing at 0 %, waits for: ")
    await world.act(ModelEvent.ROLL_BACK)
    await world.step()
    (outlook,) = world.rollouts.outlooks
    assert (outlook.rollout, outlook.text) == ("chat to v2", "rolled back: because")
    assert world.rollouts.waits_s == {("chat", "v2", "rolled_back"): 0.0}
    world.rollouts.reset()
    assert world.rollouts.outlooks == ()


async def test_a_new_leader_continues_and_the_former_one_changes_nothing(world: World) -> None:
    await world.pass_s(5)
    former, old_epoch = world.rollouts, world.epoch
    await world.take_over()
    assert world.rollouts.shares(POLICY) == ()
    await world.step()
    assert world.share() == (10.0, 0.0), "the share does not fall at a change of leader"
    world.now += 60.0
    await former.step(old_epoch, world.now, world.snapshot, POLICY, may_forget=True)
    stored = (await world.rollouts.stored())["chat"].state
    assert stored is not None
    assert stored.percent == 10.0
    world.failing.add("v2")
    await world.pass_s(3)
    assert world.share() is None


async def test_a_concurrent_change_by_an_operator_does_not_move_the_share(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.pass_s(5)
    assert world.share() == (10.0, 0.0)
    seen = await world.rollouts.stored()
    assert await world.act(ModelEvent.HALT) is ModelPhase.HELD

    async def earlier() -> dict[str, StoredModelRollout]:
        return seen

    with monkeypatch.context() as patch:
        patch.setattr(world.rollouts, "stored", earlier)
        world.failing.add("v2")
        await world.pass_s(2)
    assert world.share() == (10.0, 0.0), "until the next step reads the operator's change"
    await world.step()
    assert world.rollouts.states is not None
    assert world.rollouts.states["chat"].phase is ModelPhase.HELD


async def test_operators_halt_promote_and_roll_back(world: World) -> None:
    await world.pass_s(4)
    assert await world.act(ModelEvent.HALT) is ModelPhase.HELD
    await world.pass_s(9)
    assert world.share() == (10.0, 0.0)
    assert await world.act(ModelEvent.PROMOTE) is ModelPhase.WATCH
    await world.pass_s(1)
    assert world.share() == (100.0, 0.0)
    seen = (await world.rollouts.stored())["chat"]
    assert await world.act(ModelEvent.ROLL_BACK) is ModelPhase.ROLLED_BACK
    with pytest.raises(ChangeRefused):
        await world.rollouts.advance(OPERATOR, POLICY, seen, ModelEvent.ROLL_BACK, "again", world.now)
    with pytest.raises(NotPossible, match="is rolled_back: it cannot halt"):
        await world.act(ModelEvent.HALT)
    with pytest.raises(NoSuchRollout):
        await world.rollouts.advance(OPERATOR, WITHOUT, seen, ModelEvent.HALT, "no", world.now)
    assert [action for caller, action in await actions(world) if caller == "ann"] == [
        "model_rollout.halt",
        "model_rollout.promote",
        "model_rollout.roll_back",
    ]


async def test_a_rollout_is_forgotten_only_when_its_policy_cannot_return(world: World) -> None:
    await world.pass_s(5)
    await world.step(WITHOUT, may_forget=False)
    assert world.rollouts.shares(WITHOUT) == ()
    assert world.share() == (10.0, 0.0), "regions under the earlier policy keep it"
    await world.step(WITHOUT)
    assert await world.rollouts.stored() == {}


async def test_another_new_version_begins_again_and_an_unreadable_state_too(world: World) -> None:
    await world.pass_s(5)
    back = msgspec.structs.replace(ROLLOUT, to="v1", shadow=ShadowRequests(percent=3.0))
    versions = {"chat": ModelVersions("chat", (Version("v1", 0.0), Version("v2", 100.0)))}
    await world.step(msgspec.structs.replace(POLICY, versions=versions, model_rollouts={"chat": back}))
    assert world.rollouts.shares(POLICY) == (), "a share for another version is none of this policy"
    changed = msgspec.structs.replace(POLICY, versions=versions, model_rollouts={"chat": back})
    assert world.rollouts.shares(changed) == (VersionShare("chat", "v1", 0.0, 3.0, 10.0),)
    await world.store.commit([], [Put(keys.model_rollout("chat"), b"nonsense")])
    await world.pass_s(1)
    assert world.share() == (0.0, 0.0)
