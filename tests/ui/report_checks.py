"""Checks of the demo's report: the page draws the run on the operators' map and plays the run back."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Browser, Page, expect

from lab.demo.page.page import render_page
from tests.support.story_run import REGIONS, report_of, story_run
from tests.ui.accessibility import findings
from tests.ui.checks import OUT, PATIENCE_MS, checked, opened


async def run(browser: Browser) -> int:
    """Run the checks; the number of those that failed."""
    page = await (await opened(browser)).new_page()
    await page.goto(_written().as_uri())
    return await checked("the demo's report draws and plays a run", draws_and_plays(page))


def _written() -> Path:
    path = (OUT / "report.html").resolve()
    path.write_text(render_page(report_of(story_run()), story_run()), encoding="utf-8")
    return path


async def draws_and_plays(page: Page) -> None:
    await expect(page.locator("h1")).to_contain_text("Every promise was kept", timeout=PATIENCE_MS)
    await expect(page.locator(".map .region")).to_have_count(len(REGIONS))
    await expect(page.locator(".timeline .area").first).to_be_visible()
    killed_s = await page.evaluate("JSON.parse(document.getElementById('report').textContent).run.lost.killed_s")
    await page.get_by_label("Time in the run").fill(str(round(killed_s) + 2))
    await expect(page.locator(".map .region.failed")).to_have_count(1)
    await page.get_by_role("button", name="Play the run").click()
    await expect(page.locator("output")).not_to_have_text(f"{round(killed_s) + 2:.1f} s")
    await page.get_by_role("button", name="Pause").click()
    assert "-0" not in await page.locator(".events").inner_text()
    found = await findings(page, "report")
    assert not found, "; ".join(found)
