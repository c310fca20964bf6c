"""Checks of the page's view of usage, over segments of two days."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

from msgspec.structs import replace
from playwright.async_api import Page, expect

from adapters.object_store.folder_store import FolderStore
from lab.planet.planet import Planet
from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.ledger.segment_names import SegmentName
from regional_agent.ledger.segment_parquet import encode_segment
from tests.ui.checks import OUT, PATIENCE_MS

STORE = """\
apiVersion: penstock/v1
kind: UsageStore
name: all
url: file://{folder}
regions: [{regions}]
---
apiVersion: penstock/v1
kind: Prices
name: first
valid_from: 2026-01-01
currency: EUR
models:
  - model: "*"
    per_million_input_tokens: 1
"""

TENANTS = 20
"""Number of tenants with records: more than the plot shows."""


def policy_with_store(folder: Path, regions: str) -> str:
    """Put segments of two days of the last month into a new store, and return the documents of the store."""
    store = FolderStore(folder)
    for back in range(2):
        day = _last_month() - timedelta(days=back)
        at_ms = int(datetime.combine(day, time(), UTC).timestamp() * 1000) + 1
        records = [_record(at_ms, f"tenant-{number:02}", 3600.0 * (number + 1)) for number in range(TENANTS)]
        # Two agents of the region, of which one had just started.
        for agent, model, gpus in (("eu-de-a", "llama", 540), ("eu-de-a", "embed", 240), ("eu-de-b", "llama", 10)):
            times = {"ready_gpu_s": gpus * 3600.0, "unready_gpu_s": 60.0 * 3600, "capacity_cost": 2.0 * gpus}
            capacity = replace(_record(at_ms, "", 0.0), kind=int(RecordKind.CAPACITY), agent=agent, model=model)
            records.append(replace(capacity, **times))
        store.put(str(SegmentName(day, "eu-de", "eu-de-a", 1, 1)), encode_segment(records))
    return STORE.format(folder=folder, regions=regions)


def _last_month() -> date:
    """The last day of the last month, which has no records of the running planet."""
    return datetime.now(UTC).date().replace(day=1) - timedelta(days=1)


def _record(at_ms: int, tenant: str, gpu_s: float) -> LedgerRecord:
    return LedgerRecord(
        int(RecordKind.REQUEST),
        at_ms,
        f"r-{tenant}",
        tenant,
        "",
        "llama",
        "chat",
        "eu-de",
        "eu-de-a",
        region="eu-de",
        outcome="ok",
        input_tokens=1000,
        gpu_s=gpu_s,
        gpu_cost=gpu_s / 1800.0,
        price=0.5,
    )


async def usage(page: Page, planet: Planet, token: str) -> None:
    """Usage has plots by day, model, tenant and region, of each measure; the largest tenants have names."""
    await page.goto(page.url.partition("#")[0] + "#/usage")
    await expect(page.locator("main .grid")).not_to_contain_text("…", timeout=PATIENCE_MS)
    last = _last_month()
    await page.get_by_label("From", exact=True).fill(last.replace(day=1).isoformat())
    await page.get_by_label("to", exact=True).fill(last.isoformat())
    columns = page.locator(".columns rect")
    await expect(columns).to_have_count(last.day, timeout=PATIENCE_MS)
    tenants = page.get_by_role("table", name="cost of GPU time by tenant")
    await expect(tenants.locator("tbody tr")).to_have_count(16, timeout=PATIENCE_MS)
    await expect(tenants.locator("tbody tr").first).to_contain_text("tenant-19")
    await expect(tenants.locator("tbody tr").last).to_contain_text("all others")
    await expect(page.locator(".totals")).to_contain_text("420.00\u00a0GPU\u00a0h")
    await expect(page.locator(".totals")).to_contain_text("840.00 EUR")
    await page.locator("main form select").select_option("requests")
    regions = page.get_by_role("table", name="requests by region")
    await expect(regions.locator("tbody tr")).to_have_text(["eu-de40100\u00a0%"], timeout=PATIENCE_MS)
    idle = "GPU time that served nothing, by "
    by_region = page.get_by_role("table", name=f"{idle}region").locator("tbody tr")
    await expect(by_region).to_contain_text(["eu-de77\u00a0%"], timeout=PATIENCE_MS)
    by_model = page.get_by_role("table", name=f"{idle}model").locator("tbody tr")
    await expect(by_model).to_contain_text(["embed100\u00a0%", "llama65\u00a0%"])
    await page.screenshot(path=OUT / "usage-requests.png", full_page=True)
    await page.get_by_label("Tenant", exact=True).fill("tenant-07")
    await page.get_by_role("button", name="Read again").click()
    await expect(page.locator(".totals")).to_contain_text("16.00\u00a0GPU\u00a0h", timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "usage-of-a-tenant.png", full_page=True)
    await page.get_by_label("From", exact=True).fill("2027-12-01")
    await expect(page.locator("main .bad[role=alert]")).to_contain_text("`from` must be", timeout=PATIENCE_MS)
    await expect(page.locator(".totals dd")).to_have_count(0)
