"""Checks of the page over the real planet: how its views look, and the CPU of a control plane with 20 pages."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

from playwright.async_api import Browser, BrowserContext, Page, expect

from lab.planet.configs import control_plane_urls
from lab.planet.planet import Planet
from tests.ui.accessibility import findings
from tests.ui.checks import PATIENCE_MS, checked, cpu_share, opened

VIEWS = {
    "now": ".map .region",
    "region/eu-de": ".cell",
    "change": "table",
    "ask": "form",
    "tenants": "table",
    "tenants/personal": "dl",
    "usage": ".grid:not(:has-text('…'))",
    "past": "output",
}
"""What each view shows once it has read its data."""

ATTEMPTS = 3

PAGES = 20
CPU_S = 20.0
"""Time (s) for which the CPU time of the control plane is measured, with pages and without."""
MAX_CPU_SHARE = 0.05


async def run(browser: Browser, planet: Planet, token: str) -> int:
    """Run the checks; the number of those that failed."""
    ((name, url),) = control_plane_urls(planet.topology, planet.ports).items()
    context = await opened(browser)
    page = await context.new_page()
    await page.goto(f"{url}/ui")
    failed = await checked("look of the sign-in", _look(page, "sign-in"))
    await page.fill("#key", token)
    await page.get_by_role("button", name="Sign in", exact=True).click()
    await expect(page.get_by_role("heading", name="Now")).to_be_visible(timeout=PATIENCE_MS)
    for view, content in VIEWS.items():
        await page.goto(f"{url}/ui/#/{view}")
        await expect(page.locator(f"main {content}").first).to_be_attached(timeout=PATIENCE_MS)
        failed += await checked(f"look of {view}", _look(page, view.replace("/", "-")))
    await page.goto(f"{url}/ui/#/ask")
    failed += await checked("look of an explanation", _explanation(page))
    await page.goto(f"{url}/ui/#/region/eu-de")
    failed += await checked("look of the dialog of an action", _dialog(page))
    pid = planet.processes()[f"control plane {name}"].pid
    failed += await checked(f"CPU of the control plane with {PAGES} pages", _cpu(browser, context, url, pid))
    await context.close()
    return failed


async def _look(page: Page, name: str) -> None:
    found = await findings(page, name)
    assert not found, "; ".join(found)


async def _explanation(page: Page) -> None:
    await page.get_by_label("Tenant").fill("personal")
    await page.get_by_label("Client's country or address").fill("DE")
    await page.get_by_role("button", name="Explain").click()
    await expect(page.get_by_role("table", name="Residency rules")).to_be_visible(timeout=PATIENCE_MS)
    await page.get_by_role("checkbox", name="eu-es").check()
    await _preview(page, "Show what would move")
    await _look(page, "ask-explained")


async def _dialog(page: Page) -> None:
    await page.get_by_role("button", name="Drain…", exact=True).click()
    await _preview(page, "Show what it would do")
    await _look(page, "dialog")


async def _preview(page: Page, button: str) -> None:
    """Ask for a preview, again where a busy machine exceeds the time limit of a comparison."""
    for _ in range(ATTEMPTS):
        await page.get_by_role("button", name=button).click()
        with suppress(AssertionError):
            await expect(page.locator(".preview")).to_be_visible(timeout=PATIENCE_MS)
            return
    raise AssertionError(f"no preview: {await page.locator('.bad').all_inner_texts()}")


async def _cpu(browser: Browser, signed_in: BrowserContext, url: str, pid: int) -> str:
    """The CPU time that pages add, each in a separate browser profile, as pages of several people."""
    for page in signed_in.pages:
        await page.goto("about:blank")
    without = await cpu_share(pid, CPU_S)
    session = await signed_in.storage_state()
    async with AsyncExitStack() as stack:
        for _ in range(PAGES):
            # Small, so that drawing them leaves the control plane some of this machine.
            context = await opened(browser, session, {"width": 320, "height": 240})
            stack.push_async_callback(context.close)
            page = await context.new_page()
            await page.goto(f"{url}/ui/#/now")
            await expect(page.locator(".map .region").first).to_be_attached(timeout=PATIENCE_MS)
        added = await cpu_share(pid, CPU_S) - without
    text = f"{added:.1%} of a core for {PAGES} pages, beside {without:.1%} without pages"
    assert added < MAX_CPU_SHARE, text
    return text
