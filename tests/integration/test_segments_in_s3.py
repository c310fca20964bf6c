"""Segments in a bucket over the S3 protocol, of moto's server: put, unavailable, summed up, compacted, removed."""

from __future__ import annotations

from pathlib import Path

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
from tests.support.s3_server import BUCKET, NEEDS_MOTO, SECRET, s3_address, s3_server
from tests.unit.control_plane.usage.test_usage_query import DAY, NOON_MS, put, record

URL = f"s3://{BUCKET}/usage"

pytestmark = NEEDS_MOTO


def spool_file(folder: Path) -> SegmentUploader:
    """An uploader with one file that waits."""
    from tests.unit.regional_agent.ledger.test_segment_uploader import RecordKind, encoded, write

    write(folder, encoded(RecordKind.REQUEST, "r1"))
    return SegmentUploader(folder, open_store(URL), 9, encode_segment)


async def test_segments_are_kept_in_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_address(monkeypatch) as port:
        uploader = spool_file(tmp_path / "spool")
        with pytest.raises(StoreUnavailable) as unavailable:
            uploader.put_all()
        assert SECRET not in str(unavailable.value)
        async with s3_server(port):
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
