"""A folder's newest valid state is in force; an invalid one changes only the reported errors."""

from __future__ import annotations

import asyncio
import shutil
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import pytest

from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Committed, Delete, Put, SameKey, Unchanged
from control_plane.policy.folder import FolderReader
from control_plane.policy.source import policy_source
from control_plane.policy.source.policy_source import PolicySource
from control_plane.policy.source.revision import Origin, RevisionResult
from control_plane.policy.source.revision_store import RevisionStore
from lab.memory_store import MemoryStore
from penstock.planning.plan import RegionPlan
from tests.support import planet
from tests.support.paths import PLANET


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PLANET, tmp_path / "bundle"))


def change(folder: Path, old: str, new: str) -> None:
    path = folder / "spillover.yaml"
    path.write_text(path.read_text().replace(old, new))


async def test_a_valid_folder_is_in_force_at_once(folder: Path) -> None:
    source = PolicySource(FolderReader(folder))
    await source.load()
    assert source.current is not None
    assert (source.origin, source.refused) == (Origin.FOLDER, ())


async def test_a_change_is_accepted_when_two_polls_agree(folder: Path) -> None:
    source = PolicySource(FolderReader(folder))
    await source.load()
    before = source.current
    change(folder, "0.8", "0.7")
    await source.poll()
    assert source.current is before
    change(folder, "0.7", "0.6")
    await source.poll()
    assert source.current is before
    await source.poll()
    assert source.current is not None
    assert source.current.spillover.target_utilisation == 0.6


async def test_an_unchanged_folder_is_not_compiled_again(folder: Path) -> None:
    source = PolicySource(FolderReader(folder))
    await source.load()
    before = source.current
    for _ in range(3):
        await source.poll()
    assert source.current is before


async def test_a_revision_whose_check_did_not_finish_is_reported_once_and_checked_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = PolicySource(FolderReader(folder))

    def out_of_memory(_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(policy_source, "compile_revision", out_of_memory)
        await source.load()
        await source.poll()
    problem = "the control plane cannot check the bundle (MemoryError); its log has details"
    assert (source.current, source.errors) == (None, (problem,))
    assert [result.errors for result in source.results] == [(problem,)]
    await source.poll()
    assert source.current is not None
    assert source.errors == ()


async def test_an_invalid_change_keeps_the_last_policy_and_states_the_reason(folder: Path) -> None:
    source = PolicySource(FolderReader(folder))
    await source.load()
    before = source.current
    change(folder, "0.8", "8")
    for _ in range(2):
        await source.poll()
    assert source.current is before
    assert source.refused == (
        "spillover.yaml:4: target_utilisation: is out of bounds; write a number that is above 0 and at most 1",
    )
    change(folder, ": 8", ": 0.7")
    for _ in range(2):
        await source.poll()
    assert source.current is not before
    assert source.refused == ()


async def test_a_removed_folder_keeps_the_last_policy(folder: Path) -> None:
    source = PolicySource(FolderReader(folder))
    await source.load()
    before = source.current
    shutil.rmtree(folder)
    for _ in range(2):
        await source.poll()
    assert source.current is before
    assert "No such file or directory" in source.refused[0]


async def test_after_a_notification_only_a_later_poll_counts(folder: Path) -> None:
    doubts: list[bool] = []
    source = PolicySource(FolderReader(folder), on_stale=lambda: doubts.append(source.fresh))
    assert not source.fresh
    await source.load()
    assert source.fresh
    source.mark_stale()
    assert not source.fresh
    looking = asyncio.create_task(source.poll())
    await asyncio.sleep(0)
    source.mark_stale()
    await looking
    assert not source.fresh
    await source.poll()
    assert source.fresh
    assert doubts == [False, False], "the callback runs after the source is marked as stale"


class TestFromTheStore:
    async def in_force(self, store: MemoryStore, digest: str = "") -> None:
        policy = planet.policy()
        old = RegionPlan("eu-es", 9, 1, "gone", 0.0, ())
        new = RegionPlan("eu-de", 1, 2, digest or policy.digest(), 0.0, ())
        blob = Put(keys.policy(digest or policy.digest()), encode(policy))
        await store.commit([], [Put(keys.plan(plan.region), encode(plan)) for plan in (old, new)] + [blob])

    async def test_without_a_valid_folder_the_stored_policy_is_used(self, tmp_path: Path) -> None:
        store, source = MemoryStore(), PolicySource(FolderReader(tmp_path))
        await self.in_force(store)
        await source.load()
        assert source.current is None
        await source.adopt(store)
        assert (source.current, source.origin) == (planet.policy(), Origin.STORE)
        assert source.refused

    async def test_a_valid_folder_precedes_the_store(self, folder: Path) -> None:
        store, source = MemoryStore(), PolicySource(FolderReader(folder))
        await self.in_force(store)
        await source.load()
        before = source.current
        await source.adopt(store)
        assert source.current is before

    async def test_an_empty_store_has_no_policy(self, tmp_path: Path) -> None:
        source = PolicySource(FolderReader(tmp_path))
        await source.adopt(MemoryStore())
        assert source.current is None

    async def test_a_policy_that_differs_from_its_digest_is_rejected(self, tmp_path: Path) -> None:
        store, source = MemoryStore(), PolicySource(FolderReader(tmp_path))
        await self.in_force(store, digest="0" * 64)
        await source.adopt(store)
        assert source.current is None

    async def test_unreadable_values_are_rejected(self, tmp_path: Path) -> None:
        store, source = MemoryStore(), PolicySource(FolderReader(tmp_path))
        await self.in_force(store)
        await store.commit([], [Put(keys.policy(planet.policy().digest()), b"torn"), Put(keys.plan("x"), b"torn")])
        await source.adopt(store)
        assert source.current is None


async def test_a_result_that_displaces_the_one_being_recorded_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    leader = await store.commit([], [Put(keys.LEADER, b"")])
    results = deque([RevisionResult(digest, None, 1.0) for digest in ("a", "b")], maxlen=2)
    late = [RevisionResult("c", None, 2.0)]
    commit = store.commit

    async def commit_while_a_revision_is_checked(
        expect: Sequence[Unchanged | SameKey], do: Sequence[Put | Delete]
    ) -> Committed:
        results.extend(late)
        late.clear()
        return await commit(expect, do)

    monkeypatch.setattr(store, "commit", commit_while_a_revision_is_checked)
    revisions = RevisionStore(store)
    await revisions.record(results, leader.revision)
    assert [revision.digest for revision in await revisions.newest_first()] == ["c", "b", "a"]
    assert not results
