"""Segments in a bucket over the S3 protocol, of moto's server: put, unavailable, summed up, compacted, removed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from adapters.object_store.object_store import ObjectStore, StoreUnavailable
from adapters.object_store.store_opening import open_store
from control_plane.usage.compaction import MIN_SEGMENTS, compact
from control_plane.usage.segment_files import list_segments
from control_plane.usage.usage_query import answer
from control_plane.usage.usage_request import StoreToRead, UsageRequest
from penstock.ledger.segment_names import SegmentName
from regional_agent.ledger.segment_parquet import encode_segment
from regional_agent.ledger.segment_uploader import SegmentUploader
from tests.support.reserved_ports import reserved_ports
from tests.support.wait import until_async
from tests.unit.control_plane.usage.test_usage_query import DAY, NOON_MS, put, record

MOTO = os.environ.get("MOTO_SERVER") or shutil.which("moto_server")
URL = "s3://usage/penstock"
SECRET = "not-in-any-message"

pytestmark = [pytest.mark.long, pytest.mark.skipif(MOTO is None, reason="run by make test-object-stores")]


@contextmanager
def moto(port: int) -> Iterator[None]:
    """The server, without state of before."""
    assert MOTO is not None
    process = subprocess.Popen([MOTO, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def create_bucket(port: int) -> None:
    async def creates() -> bool:
        async with httpx.AsyncClient() as client:
            try:
                return (await client.put(f"http://127.0.0.1:{port}/usage")).status_code == 200
            except httpx.HTTPError:
                return False

    await until_async(creates)


def spool_file(folder: Path) -> SegmentUploader:
    """An uploader with one file that waits."""
    from tests.unit.regional_agent.ledger.test_segment_uploader import RecordKind, encoded, write

    write(folder, encoded(RecordKind.REQUEST, "r1"))
    return SegmentUploader(folder, open_store(URL), 9, encode_segment)


async def test_segments_are_kept_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reserved_ports(1) as (port,):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "eu-central-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        uploader = spool_file(tmp_path / "spool")
        with pytest.raises(StoreUnavailable) as unavailable:
            uploader.put_all()
        assert SECRET not in str(unavailable.value)
        with moto(port):
            await create_bucket(port)
            assert uploader.put_all() == 1
            store: ObjectStore = open_store(URL)
            names = [put(store, number, record()) for number in range(MIN_SEGMENTS)]
            # Twice by the same name.
            put(store, 0, record())
            question = UsageRequest((StoreToRead("s3", URL),), DAY, DAY)
            assert answer(question, tmp_path / "cache").rows[0].requests == MIN_SEGMENTS
            assert compact(store, names[0], tmp_path / "cache", NOON_MS) == MIN_SEGMENTS
            (left,) = list_segments(store, DAY, DAY)
            assert left.name == SegmentName(DAY, "eu-de", "_compacted", NOON_MS, 1)
            assert answer(question, tmp_path / "cache").rows[0].requests == MIN_SEGMENTS
            store.delete(str(left.name))
            store.delete(str(left.name))
        found = answer(question, tmp_path / "cache")
        assert found.rows == ()
        assert found.missing[0].startswith("the store s3 could not be read: ")
