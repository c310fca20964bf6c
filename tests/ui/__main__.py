"""Drives the page for operators in headless Chromium, against a small planet of real processes; a line for each check.

Screenshots are written to `out/ui/`. Exit code 1 if a check failed, 2 if there is no Chromium.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
from playwright.async_api import Browser, Error, Page, async_playwright, expect

from lab.geoip import SITES
from lab.planet.configs import ADMIN_TOKEN_FILE, control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, Engine, Region, Topology, agent_port
from tests.support.live_planets import BETWEEN_S, BODY, KEY, running
from tests.ui import large_fleet_checks, planet_checks
from tests.ui.checks import OUT, PATIENCE_MS

CLIENTS = 14
"""Clients of Frankfurt: more than it has slots, so that some are served in Madrid."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")

Check = Callable[[Page, Planet, str], Awaitable[None]]


def topology() -> Topology:
    """Three regions, of which Frankfurt is too small for its clients."""
    regions = tuple(
        Region(
            name, city, ("a",), tuple(Engine(f"{name}-{n}", CHAT_8B, "h100", f"{name}-{n}", slots) for n in range(2))
        )
        for name, city, slots in (("eu-de", "Frankfurt", 4), ("eu-es", "Madrid", 8), ("us-east", "Ashburn", 8))
    )
    return Topology(regions, SITES[:1], ("north",), time_scale=2.0)


async def sign_in(page: Page, planet: Planet, token: str) -> None:
    """A wrong key is refused, the right one begins a session that scripts cannot read."""
    await page.fill("#key", "wrong")
    await page.click("text=Sign in")
    await expect(page.get_by_role("alert")).to_contain_text("key", timeout=PATIENCE_MS)
    await page.fill("#key", token)
    await page.click("text=Sign in")
    await expect(page.get_by_role("heading", name="Now")).to_be_visible(timeout=PATIENCE_MS)
    assert await page.evaluate("document.cookie") == "", "a script can read the session"
    await page.reload()
    await expect(page.get_by_role("heading", name="Now")).to_be_visible(timeout=PATIENCE_MS)


async def now(page: Page, planet: Planet, token: str) -> None:
    """The map shows each region with its load, and an arc for what spills over."""
    await expect(page.locator(".region.healthy")).to_have_count(3, timeout=PATIENCE_MS)
    await expect(page.locator(".arc.spillover").first).to_be_attached(timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Flows between regions")).to_contain_text("eu-es")
    await expect(page.locator(".events li").first).to_be_visible(timeout=PATIENCE_MS)


async def region(page: Page, planet: Planet, token: str) -> None:
    """The map leads to a region with its endpoints, pools and agents."""
    await page.locator(".region", has_text="eu-de").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="eu-de", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.locator(".cell")).to_have_count(2, timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Agents")).to_contain_text("a")


async def drain(page: Page, planet: Planet, token: str) -> None:
    """A drain shows what it would move before it can be confirmed, and is undone."""
    form = page.locator("form", has=page.get_by_role("heading", name="Drain eu-de", exact=True))
    confirm = form.get_by_role("button", name="Drain", exact=True)
    await expect(confirm).to_be_disabled()
    await form.get_by_label("Reason").fill("a test of the page")
    await form.get_by_role("button", name="Show what would move").click()
    await expect(form.locator(".preview")).to_contain_text("would be served elsewhere", timeout=PATIENCE_MS)
    await confirm.click()
    await expect(page.locator(".lead")).to_contain_text("a test of the page", timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "drain.png", full_page=True)
    undo = page.locator("form", has=page.get_by_role("heading", name="Undrain eu-de"))
    await undo.get_by_label("Reason").fill("the test is over")
    await undo.get_by_role("button").click()
    await expect(undo.locator(".outcome")).to_contain_text("returns", timeout=PATIENCE_MS)


async def refused(page: Page, planet: Planet, token: str) -> None:
    """An action that the API refuses shows the reason and changes nothing."""
    undo = page.locator("form", has=page.get_by_role("heading", name="Undrain eu-de"))
    await undo.get_by_label("Reason").fill("there is nothing to undo")
    await undo.get_by_role("button").click()
    await expect(undo.locator(".outcome.bad")).to_be_visible(timeout=PATIENCE_MS)


async def change(page: Page, planet: Planet, token: str) -> None:
    """The drain is in the audit trail with its author and reason."""
    await page.click("nav >> text=Change")
    await expect(page.get_by_role("table", name="Audit trail")).to_contain_text(
        "a test of the page", timeout=PATIENCE_MS
    )
    await expect(page.get_by_role("table", name="Agents")).to_contain_text("us-east")


async def ask(page: Page, planet: Planet, token: str) -> None:
    """A request is explained with the rule and its place; the loss of a region shows what would move."""
    await page.click("nav >> text=Ask")
    await page.get_by_label("Tenant").fill("personal")
    await page.get_by_label("Client's country or address").fill("DE")
    await page.get_by_role("button", name="Explain").click()
    await expect(page.get_by_role("table", name="Regions")).to_contain_text("forbidden", timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Residency rules")).to_contain_text(
        "residency.yaml", timeout=PATIENCE_MS
    )
    await page.get_by_role("checkbox", name="us-east").check()
    await page.get_by_role("button", name="Show what would move").click()
    await expect(page.locator(".preview")).to_be_visible(timeout=PATIENCE_MS)


async def past(page: Page, planet: Planet, token: str) -> None:
    """The slider goes through the plans that are kept."""
    await page.click("nav >> text=Past")
    await expect(page.locator("output")).to_contain_text("by north", timeout=PATIENCE_MS)
    latest = await page.locator("output").inner_text()
    await page.locator("#when").press("Home")
    await expect(page.locator("output")).not_to_have_text(latest, timeout=PATIENCE_MS)


async def lost_region(page: Page, planet: Planet, token: str) -> None:
    """The death of a region is shown."""
    await page.click("nav >> text=Now")
    await expect(page.locator(".region.healthy")).to_have_count(3, timeout=PATIENCE_MS)
    await asyncio.to_thread(planet.kill_region, "us-east")
    await expect(page.locator(".region.failed")).to_have_count(1, timeout=PATIENCE_MS)


async def lost_control_plane(page: Page, planet: Planet, token: str) -> None:
    """The page reports that the control plane does not answer, and returns by itself with its session."""
    await asyncio.to_thread(planet.kill_control_plane, "north")
    await expect(page.locator("#lost")).to_be_visible(timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "lost.png")
    await asyncio.to_thread(planet.restart_killed)
    await expect(page.locator("#lost")).to_be_hidden(timeout=PATIENCE_MS)
    await expect(page.locator(".region.healthy")).to_have_count(3, timeout=PATIENCE_MS)


CHECKS: tuple[Check, ...] = (
    sign_in,
    now,
    region,
    drain,
    refused,
    change,
    ask,
    past,
    lost_region,
    lost_control_plane,
)


async def client(address: str) -> None:
    """One client, which asks again and again."""
    async with httpx.AsyncClient(timeout=60.0) as http:
        while True:
            with suppress(httpx.HTTPError):
                await http.post(f"{address}/v1/chat/completions", headers=KEY, json=BODY | {"max_tokens": 200})
            await asyncio.sleep(BETWEEN_S)


async def run(browser: Browser, planet: Planet, token: str) -> int:
    """Run the checks in order; the number of those that failed."""
    page = await browser.new_page(viewport={"width": 1320, "height": 1000})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    (where,) = control_plane_urls(planet.topology, planet.ports).values()
    await page.goto(f"{where}/ui")
    failed = 0
    for check in CHECKS:
        result = "ok"
        try:
            await check(page, planet, token)
        except (AssertionError, Error) as error:
            result = f"FAILED: {str(error).splitlines()[0]}"
        if errors:
            result = f"FAILED: the page raised {errors.pop()}"
            errors.clear()
        failed += result != "ok"
        await page.screenshot(path=OUT / f"{check.__name__}.png", full_page=True)
        print(f"{(check.__doc__ or '').strip()} {result}", flush=True)
    return failed


async def main() -> int:
    """Start the planet, its clients and the browser."""
    executable = next((found for name in CHROMIUM if (found := shutil.which(name)) is not None), None)
    if executable is None:
        print("there is no Chromium: apt install chromium", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="penstock-ui-") as name:
        directory = Path(name)
        async with running(directory, topology()) as planet, async_playwright() as playwright:
            token = (directory / "state" / ADMIN_TOKEN_FILE).read_text().strip()
            frankfurt = url(planet.ports[agent_port("eu-de", "a", "traffic")])
            clients = [asyncio.create_task(client(frankfurt)) for _ in range(CLIENTS)]
            browser = await playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
            failed = await run(browser, planet, token)
            others_failed = await planet_checks.run(browser, planet, token) + await large_fleet_checks.run(browser)
            await browser.close()
            for each in clients:
                each.cancel()
    print(f"{failed + others_failed} checks failed; screenshots are in {OUT}")
    return 1 if failed or others_failed else 0


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(main()))
