"""Checks of the page over the large fleet: sign-in at the provider, first paint, size, frames, accessibility, CPU."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import httpx
from playwright.async_api import Browser, CDPSession, Page, expect

from tests.ui.accessibility import findings
from tests.ui.checks import OUT, PATIENCE_MS, checked, cpu_share, opened
from tests.ui.large_fleet import REGIONS
from tests.ui.large_fleet_server import TOKEN

MAX_FIRST_PAINT_MS = 1_000.0
MAX_BYTES = 300_000

FRAMES_S = 6
"""Time (s) for which frames are counted: six updates of the whole fleet."""

PAGES = 20
CPU_S = 15.0
"""Time (s) for which the CPU time of a control plane is measured."""

MAX_ARCS = 40
"""Maximum number of arcs that the map draws."""
MAX_HEIGHT_PX = 6_000
"""Maximum height of the first view, in which longer tables are folded."""

VIEWS = ("now", "region/eu-de", "change", "ask", "tenants", "past")

FRAMES = """seconds => new Promise(resolve => {
  const gaps = [];
  let last = performance.now();
  const end = last + 1000 * seconds;
  const step = now => {
    gaps.push(now - last);
    last = now;
    now < end ? requestAnimationFrame(step) : resolve(gaps.slice(1));
  };
  requestAnimationFrame(step);
})"""

PLACED = """() => [...document.querySelectorAll(".map .region")].reduce((sum, region) =>
  sum + Number(region.querySelector(".number")?.textContent ?? 1), 0)"""
"""Number of regions on the map, those that are one place included."""

COVERED = """() => {
  const labels = [...document.querySelectorAll(".map .region > text:last-child")];
  const boxes = labels.map(text => text.getBoundingClientRect());
  const cover = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 3
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  return boxes.filter((box, index) => boxes.slice(0, index).some(other => cover(box, other))).length;
}"""
"""Number of labels that cover another one."""

LOADED = """() => {
  const loads = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const files = loads.filter(load => new URL(load.name).pathname.startsWith("/ui"));
  return { paint: performance.getEntriesByName("first-contentful-paint")[0].startTime, files: files.length,
    bytes: files.reduce((sum, load) => sum + load.transferSize, 0) };
}"""


@contextmanager
def served() -> Iterator[tuple[str, int]]:
    """The large fleet's page in a process of its own: its URL and process id."""
    command = [sys.executable, "-m", "tests.ui.large_fleet_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            assert url, "the server of the large fleet did not start"
            yield url, process.pid
        finally:
            process.terminate()


async def run(browser: Browser) -> int:
    """Run the checks; the number of those that failed."""
    failed = 0
    with served() as (url, pid):
        page = await (await opened(browser)).new_page()
        failed += await checked("a person signs in at the provider and is where the link led", _sign_in(page, url))
        failed += await checked("the page renews a session of the provider and stays where it is", _renew(page))
        failed += await checked("100 regions and 2,000 arcs are drawn", _draw(page, url))
        failed += await checked(
            "alarms and missed objectives are above the map, and long tables are folded", _alarms(page)
        )
        failed += await checked(
            "the map shows the arcs of a region alone, and a place of several regions opens", _focus(page)
        )
        failed += await checked("a region without a city is in its country", _without_city(page, url))
        failed += await checked("a skeleton until the first status", _skeleton(page, url))
        failed += await checked("frames while all of them change each second", _frames(page))
        for view in VIEWS:
            failed += await checked(f"look of {view} with 100 regions", _look(page, url, view))
        await page.context.close()
        failed += await checked("first paint and bytes of the page", _first_paint(browser, url))
        failed += await checked(f"CPU for {PAGES} streams of 100 regions", _cpu_of_streams(url, pid))
    return failed


async def _sign_in(page: Page, url: str) -> None:
    await page.goto(f"{url}/ui/#/change")
    assert not await findings(page, "sign-in-with-provider")
    await page.get_by_role("button", name="Sign in with localhost").click()
    await page.click("#refuse")
    await expect(page.get_by_role("alert")).to_contain_text("access_denied: <b>not today</b>", timeout=PATIENCE_MS)
    assert not await findings(page, "sign-in-failed")
    await page.get_by_role("link", name="Back to the page").click()
    await page.get_by_role("button", name="Sign in with localhost").click()
    await page.click("#accept")
    await expect(page.get_by_role("heading", name="Change")).to_be_visible(timeout=PATIENCE_MS)
    assert await page.evaluate("document.cookie") == "", "a script can read the session"
    cookies = {cookie["name"]: cookie["sameSite"] for cookie in await page.context.cookies(url)}
    assert cookies == {"penstock-session": "Strict"}, cookies


async def _renew(page: Page) -> None:
    await page.context.clear_cookies(name="penstock-session")
    # As if the sign-in were an hour ago: within a minute, the page does not redirect to the provider again.
    await page.evaluate("sessionStorage.setItem('penstock-left-at', 1)")
    await page.evaluate("location.hash = '#/region/eu-de'")
    await page.click("#accept", timeout=2 * PATIENCE_MS)
    await expect(page.get_by_role("heading", name="eu-de", exact=True)).to_be_visible(timeout=PATIENCE_MS)


async def _draw(page: Page, url: str) -> str:
    await page.goto(f"{url}/ui/#/now")
    await expect(page.locator(".map .region").first).to_be_visible(timeout=PATIENCE_MS)
    placed = await page.evaluate(PLACED)
    assert placed == REGIONS, f"{placed} regions"
    arcs = await page.locator(".map .arc").count()
    assert 0 < arcs <= MAX_ARCS, f"{arcs} arcs"
    await expect(page.locator(".map-bar")).to_contain_text(f"{MAX_ARCS} largest of")
    covered = await page.evaluate(COVERED)
    assert covered == 0, f"{covered} labels cover others"
    await expect(page.locator(".spark").nth(REGIONS)).to_be_attached(timeout=PATIENCE_MS)
    return f"ok, {arcs} arcs, {await page.locator('.map .region').count()} places"


async def _alarms(page: Page) -> None:
    alarms = page.get_by_role("list", name="Alarms")
    await expect(alarms.get_by_role("listitem").first).to_contain_text("regions failed")
    await expect(alarms).to_contain_text("objectives missed")
    above, below = await alarms.bounding_box(), await page.locator(".map").bounding_box()
    assert above is not None
    assert below is not None
    assert above["y"] + above["height"] < below["y"], "alarms are above the map"
    height = await page.evaluate("document.documentElement.scrollHeight")
    assert height < MAX_HEIGHT_PX, f"{height} px high"
    rows = page.get_by_role("table", name="Regions", exact=True).locator("tbody tr:visible")
    await expect(rows).to_have_count(10)
    await page.get_by_label(f"Show all {REGIONS} rows").first.check()
    await expect(rows).to_have_count(REGIONS)
    await page.get_by_label(f"Show all {REGIONS} rows").first.uncheck()


async def _focus(page: Page) -> None:
    await page.get_by_label("Arcs of").select_option("eu-de")
    await expect(page.locator(".map-bar")).to_contain_text("alone")
    joined = page.locator(".map .region.cluster", has_text="za-jnb").locator(".number")
    await joined.hover()
    await expect(page.locator(".map-bar")).to_contain_text("Arcs of za-jnb")
    await page.screenshot(path=OUT / "focus.png")
    before = await page.locator(".map .region").count()
    await joined.click()
    await page.mouse.move(0, 0)
    await expect(page.locator(".map .region")).not_to_have_count(before)
    await page.get_by_role("button", name="Show all regions").click()
    await page.get_by_label("Arcs of").select_option("")


async def _without_city(page: Page, url: str) -> None:
    await page.goto(f"{url}/ui/#/region/eu-de-2")
    await expect(page.locator(".lead")).to_have_text(re.compile(r"^\w+ Germany, for "), timeout=PATIENCE_MS)


async def _skeleton(page: Page, url: str) -> None:
    await page.route("**/v1/events*", lambda route: route.abort())
    await page.goto("about:blank")
    await page.goto(f"{url}/ui/#/now")
    await expect(page.get_by_role("heading", name="Loading")).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.locator("main svg")).to_have_count(0)
    await page.screenshot(path=OUT / "skeleton.png")
    await page.unroute("**/v1/events*")
    await expect(page.locator(".map .region").first).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.get_by_role("heading", name="Loading")).to_have_count(0)


async def _frames(page: Page) -> str:
    devtools = await page.context.new_cdp_session(page)
    await devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = await _main_thread_s(devtools)
    gaps = sorted(await page.evaluate(FRAMES, FRAMES_S))
    busy = (await _main_thread_s(devtools) - before) / FRAMES_S
    at = {share: gaps[int(share * (len(gaps) - 1))] for share in (0.5, 0.95, 1.0)}
    return (
        f"{len(gaps) / FRAMES_S:.0f} frames/s; time of a frame: median {at[0.5]:.0f} ms, 95 % {at[0.95]:.0f} ms, "
        f"longest {at[1.0]:.0f} ms; the page's thread computes {busy:.0%} of the time"
    )


async def _main_thread_s(devtools: CDPSession) -> float:
    """The CPU time (s) of the page's main thread, which a busy machine does not lengthen."""
    metrics = (await devtools.send("Performance.getMetrics"))["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")


async def _look(page: Page, url: str, view: str) -> None:
    await page.goto(f"{url}/ui/#/{view}")
    await expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=PATIENCE_MS)
    # This fleet keeps no plan: a map without one is the whole world, not shapes in a corner.
    await expect(page.locator(".map .land:not([transform])")).to_have_count(0)
    found = await findings(page, f"100-regions-{view.replace('/', '-')}")
    assert not found, "; ".join(found)


async def _first_paint(browser: Browser, url: str) -> str:
    """Measure in three browsers without a cache; the median, since a busy machine delays one."""
    paints, loaded = [], {}
    for _ in range(3):
        context = await opened(browser)
        page = await context.new_page()
        await page.goto(f"{url}/ui/")
        await expect(page.get_by_role("heading", name="Penstock")).to_be_visible(timeout=PATIENCE_MS)
        loaded = await page.evaluate(LOADED)
        paints.append(loaded["paint"])
        await context.close()
    paint_ms, size = median(paints), int(loaded["bytes"])
    assert size < MAX_BYTES, f"{size} bytes"
    assert paint_ms < MAX_FIRST_PAINT_MS, f"first paint after {paint_ms:.0f} ms"
    return f"{paint_ms:.0f} ms (median of {len(paints)}), {size / 1000:.0f} kB in {loaded['files']} files"


async def _cpu_of_streams(url: str, pid: int) -> str:
    """The CPU time of the server while clients follow the status as pages do."""
    received = [0] * PAGES
    async with httpx.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {TOKEN}", "last-event-id": "0-0"},
        limits=httpx.Limits(max_connections=None),
        timeout=PATIENCE_MS / 1000,
    ) as http:

        async def follow(number: int) -> None:
            async with http.stream("GET", "/v1/events", params={"status": "true"}) as response:
                assert response.status_code == 200
                async for chunk in response.aiter_raw():
                    received[number] += len(chunk)

        clients = [asyncio.create_task(follow(number)) for number in range(PAGES)]
        while not all(received):
            await asyncio.sleep(0.1)
            for client in clients:
                if client.done():
                    client.result()
        share = await cpu_share(pid, CPU_S)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return f"{share:.1%} of a core, {sum(received) / PAGES / CPU_S / 1000:.0f} kB/s for each"
