"""Pages of lists of files and jobs, and how many names of a bucket they read."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from adapters.object_store.folder_store import FolderStore
from penstock.jobs.store_paths import BATCH, JOB, MESSAGE_BATCH, new_id
from regional_agent.jobs.storage import job_storage, page
from regional_agent.jobs.storage.job_storage import JobStorage, JobStorages
from regional_agent.jobs.storage.page import Page, page_of

FOLDER = "tenants/a/jobs"


class Bucket:
    """A store that lists names as they are used, or a folder, which lists them at once."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.is_folder = False
        self.listings = self.read = 0

    def names(self, folder: str, after: str) -> Iterable[str]:
        assert folder == FOLDER
        self.listings += 1
        found = [name for name in self.all if name > after]
        return found if self.is_folder else self._used(found)

    def _used(self, found: list[str]) -> Iterator[str]:
        for name in found:
            self.read += 1
            yield name

    def holds(self, identifiers: Iterable[str]) -> None:
        self.all = sorted(f"{each}.json" for each in identifiers)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(job_storage, "_open", lambda url: made)
    return made


@pytest.fixture
def storage(bucket: Bucket) -> Iterator[JobStorage]:
    storages = JobStorages()
    yield storages.of("s3://bucket/jobs")
    storages.close()


def made_at(unix_s: float, number: int, prefix: str = JOB) -> str:
    return new_id(prefix, unix_s, number.to_bytes(10, "big"))


async def pages(storage: JobStorage, prefix: str, limit: int, *, ascending: bool = False) -> list[str]:
    """Read all pages, each after the last identifier of the one before."""
    found: list[str] = []
    while True:
        names, more = await page_of(storage, FOLDER, Page(limit, found[-1] if found else "", "", ascending), prefix)
        found += names
        if not more:
            return found


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("few", [3, 1000])
@pytest.mark.parametrize("limit", [1, 7, 100])
async def test_pages_are_those_of_the_whole_list(
    bucket: Bucket, storage: JobStorage, monkeypatch: pytest.MonkeyPatch, limit: int, few: int, is_folder: bool
) -> None:
    monkeypatch.setattr(page, "FEW", few)
    rng, now = Random(7), time.time()
    ages_s = [rng.choice((1.0, 1000.0, 1e5, 1e7, -1e9)) * rng.random() for _ in range(40)]
    identifiers = {
        prefix: sorted(made_at(now - age_s, n, prefix) for n, age_s in enumerate(ages_s))
        for prefix in (BATCH, MESSAGE_BATCH)
    }
    bucket.is_folder = is_folder
    bucket.holds([*identifiers[BATCH], *identifiers[MESSAGE_BATCH], "notes", "zzz"])
    for prefix, every in identifiers.items():
        assert await pages(storage, prefix, limit, ascending=True) == every
        assert await pages(storage, prefix, limit) == every[::-1]
        for before in (every[0], every[11], every[-1], "unknown"):
            newer = [name for name in every if name > before]
            names, more = await page_of(storage, FOLDER, Page(limit, before=before), prefix)
            assert names == newer[:limit][::-1]
            assert more is (len(newer) > limit)


@pytest.mark.parametrize("after", ["", "job_", "zzz", "job_0/..", "job_" + "f" * 32, "\u00e9"])
async def test_a_page_after_a_text_that_is_no_identifier_follows_its_place(
    bucket: Bucket, storage: JobStorage, after: str
) -> None:
    every = [made_at(n, n) for n in range(5)]
    bucket.holds(every)
    newer, older = [name for name in every if name > after], [name for name in every if not after or name < after]
    assert (await page_of(storage, FOLDER, Page(9, after, ascending=True), JOB))[0] == newer
    assert (await page_of(storage, FOLDER, Page(9, after), JOB))[0] == older[::-1]


@pytest.mark.parametrize(
    ("apart_s", "in_windows"), [(0.01, 6_000), (1.0, 60), (60.0, 1 + 256)], ids=["quick", "steady", "slow"]
)
async def test_a_page_of_a_long_list_reads_a_part_of_it(
    bucket: Bucket, storage: JobStorage, monkeypatch: pytest.MonkeyPatch, apart_s: float, in_windows: int
) -> None:
    now = time.time()
    monkeypatch.setattr(page, "time", SimpleNamespace(time=lambda: now))
    every = [made_at(now - n * apart_s, n) for n in range(100_000)][::-1]
    bucket.holds(every)
    for after in ("", every[50_000]):
        bucket.read = bucket.listings = 0
        names, more = await page_of(storage, FOLDER, Page(20, after), JOB)
        end = every.index(after) if after else len(every)
        assert (names, more) == (every[end - 20 : end][::-1], True)
        assert bucket.read <= page.FEW + in_windows + 5
        assert bucket.listings <= 3
    bucket.read = 0
    assert (await page_of(storage, FOLDER, Page(20, every[50_000], ascending=True), JOB))[0] == every[50_001:50_021]
    assert bucket.read <= 22


def test_names_of_a_folder_are_those_of_its_files_without_a_look_at_each(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    assert store.names("a/b", "") == []
    for path in ("a/b/2", "a/b/1", "a/b/.hidden", "a/3"):
        store.put(path, b"")
    assert (store.names("a/b", ""), store.names("a/b", "1"), store.names("a/b", "2")) == (["1", "2"], ["2"], [])
