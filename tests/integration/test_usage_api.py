"""`GET /v1/usage` of a control plane whose policy has usage stores, and the refusals of questions."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from adapters.object_store.folder_store import FolderStore
from control_plane.auth.authentication import Access
from control_plane.usage.compaction import MIN_SEGMENTS
from tests.support.api_app import OPERATOR, TOKEN, client_of, leading_control_plane, served
from tests.support.paths import PLANET
from tests.unit.control_plane.usage.test_usage_query import put, record

STORE = """\
apiVersion: penstock/v1
kind: UsageStore
name: all
url: file://{folder}
regions: [eu-de, eu-es, eu-gb, us-east]
"""

pytestmark = pytest.mark.long
"""Each question imports DuckDB in a process of its own."""

DAYS = {"from": "2026-11-01", "to": "2026-11-30"}


async def test_usage_is_summed_up_and_what_lacks_is_named(tmp_path: Path) -> None:
    policies, folder = tmp_path / "policies", tmp_path / "store"
    shutil.copytree(PLANET, policies)
    put(FolderStore(folder), 1, record(), record(tenant="other"))
    (policies / "usage.yaml").write_text(STORE.format(folder=folder))
    async with (
        leading_control_plane(policies=policies) as control_plane,
        client_of(served(control_plane, Access(TOKEN))) as api,
    ):
        response = await api.get("/v1/usage", params={**DAYS, "by": "tenant, day"}, headers=OPERATOR)
        assert response.status_code == 200, response.text
        answer = response.json()
        assert [(row["group"], row["requests"]) for row in answer["rows"]] == [
            ({"tenant": "acme", "day": "2026-11-27"}, 1),
            ({"tenant": "other", "day": "2026-11-27"}, 1),
        ]
        assert answer["missing"] == ["no usage store covers jp-tok: its agents hold their records"]
        for wrong in ({"by": "price"}, {"from": "2026-12-01"}, {"from": "1926-01-01"}, {"from": "yesterday"}):
            response = await api.get("/v1/usage", params={**DAYS, **wrong}, headers=OPERATOR)
            assert response.status_code in (400, 422), wrong
        assert (await api.get("/v1/usage")).status_code == 401
        for number in range(2, MIN_SEGMENTS + 1):
            put(FolderStore(folder), number, record(), day=datetime.now(UTC).date())
        put(FolderStore(folder), MIN_SEGMENTS + 1, record(), day=datetime.now(UTC).date())
        assert len(list(folder.rglob("*.parquet"))) == 1 + MIN_SEGMENTS
        await control_plane._keep_usage_stores()
        assert len(list(folder.rglob("*.parquet"))) == 2


async def test_without_a_store_there_is_no_ledger() -> None:
    async with leading_control_plane() as control_plane, client_of(served(control_plane, Access(TOKEN))) as api:
        response = await api.get("/v1/usage", headers=OPERATOR)
        assert response.status_code == 409
        assert "UsageStore" in response.json()["detail"]
