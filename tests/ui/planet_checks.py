"""Checks of the page over the real planet: accessibility of its views, and the CPU of a control plane with 20 pages."""

from __future__ import annotations

from contextlib import AsyncExitStack

from playwright.async_api import Browser, BrowserContext, Page, expect

from lab.planet.configs import control_plane_urls
from lab.planet.planet import Planet
from tests.ui.accessibility import findings
from tests.ui.checks import OUT, PATIENCE_MS, checked, cpu_share

VIEWS = {
    "now": ".map .region",
    "region/eu-de": ".cell",
    "change": "table",
    "ask": "form",
    "tenants": "table",
    "usage": "table",
    "past": "output",
}
"""What each view shows once it has read its data."""

PAGES = 20
CPU_S = 20.0
"""Time (s) for which the CPU time of the control plane is measured, with pages and without."""
MAX_CPU_SHARE = 0.05


async def run(browser: Browser, planet: Planet, token: str) -> int:
    """Run the checks; the number of those that failed."""
    ((name, url),) = control_plane_urls(planet.topology, planet.ports).items()
    context = await browser.new_context(viewport={"width": 1320, "height": 1000})
    page = await context.new_page()
    await page.goto(f"{url}/ui")
    failed = await checked("accessibility of the sign-in", _accessible(page, "sign-in"))
    await page.fill("#key", token)
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await expect(page.get_by_role("heading", name="Now")).to_be_visible(timeout=PATIENCE_MS)
    for view, content in VIEWS.items():
        await page.goto(f"{url}/ui/#/{view}")
        await expect(page.locator(f"main {content}").first).to_be_attached(timeout=PATIENCE_MS)
        short = view.partition("/")[0]
        failed += await checked(f"accessibility of {short}", _accessible(page, short))
    pid = planet.processes()[f"control plane {name}"].pid
    failed += await checked(f"CPU of the control plane with {PAGES} pages", _cpu(browser, context, url, pid))
    await context.close()
    return failed


async def _accessible(page: Page, view: str) -> None:
    found = await findings(page)
    await page.emulate_media(color_scheme="dark")
    await page.screenshot(path=OUT / f"{view}-dark.png", full_page=True)
    await page.emulate_media(color_scheme="light")
    assert not found, "; ".join(found)


async def _cpu(browser: Browser, signed_in: BrowserContext, url: str, pid: int) -> str:
    """The CPU time that pages add, each in a separate browser profile, as pages of several people."""
    for page in signed_in.pages:
        await page.goto("about:blank")
    without = await cpu_share(pid, CPU_S)
    session = await signed_in.storage_state()
    async with AsyncExitStack() as stack:
        for _ in range(PAGES):
            # Small, so that drawing them leaves the control plane some of this machine.
            context = await browser.new_context(storage_state=session, viewport={"width": 320, "height": 240})
            stack.push_async_callback(context.close)
            page = await context.new_page()
            await page.goto(f"{url}/ui/#/now", timeout=PATIENCE_MS)
            await expect(page.locator(".map .region").first).to_be_attached(timeout=PATIENCE_MS)
        added = await cpu_share(pid, CPU_S) - without
    text = f"{added:.1%} of a core for {PAGES} pages, beside {without:.1%} without pages"
    assert added < MAX_CPU_SHARE, text
    return text
