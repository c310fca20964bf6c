"""Tests the operators' page in headless Chromium, against a small planet of real processes; a line for each check.

Screenshots are written to `out/ui/`. Exit code 1 if a check failed, 2 if there is no Chromium.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import httpx
from playwright.async_api import Browser, Error, Page, async_playwright, expect

from lab.geoip import SITES
from lab.planet.bundle import SHIPPED_BUNDLE
from lab.planet.configs import ADMIN_TOKEN_FILE, control_plane_urls, url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, Engine, Region, Topology, agent_port
from tests.support.live_planets import BETWEEN_S, BODY, KEY, running
from tests.support.tiers import TIERS
from tests.support.wait import until_async
from tests.ui import large_fleet_checks, planet_checks, report_checks
from tests.ui.checks import OUT, PATIENCE_MS, opened
from tests.ui.tenant_checks import tenants
from tests.ui.usage_checks import policy_with_store, usage

POLICY = OUT / "policy"
"""The policy of the planet, which a check changes."""

USAGE = OUT / "segments"
"""The usage store of the planet."""

CLIENTS = 14
"""Clients of Frankfurt: more than it has slots, so that some are served in Madrid."""

MAX_STEPS = 300
"""Maximum number of moments that a check goes through."""

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")

OUTLOOK = """async () => {
  const { outlook } = await import(new URL("change.js", document.querySelector("script[type=module]").src));
  return outlook({
    conditions: [{ text: "20 of 50 requests", is_met: false }, { text: "met", is_met: true }],
    ends_in_s: 60,
    waiting: { digest: "0123456789abcdef", place: 1, why: "it waits", begins_in_s: 300 },
    versions: [{ rollout: "chat to v2", text: "preparing" }],
  });
}"""
"""What the page says of a rollout, and of a policy that waits for its own."""

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


async def act(page: Page, opener: str, confirm: str, reason: str, *, expected: str, refusal: str = "") -> None:
    """Run an action in its dialog, which shows the effect before confirmation; the action succeeds or is refused."""
    await page.get_by_role("button", name=opener, exact=True).click()
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name=confirm, exact=True)
    await expect(button).to_be_disabled()
    await dialog.get_by_role("button", name="Show what it would do").click()
    await expect(dialog).to_contain_text(expected, timeout=PATIENCE_MS)
    await dialog.get_by_label("Reason").fill(reason)
    await expect(button).to_be_enabled(timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / f"{confirm.lower().replace(' ', '-')}-dialog.png")
    await button.click()
    await expect(dialog.locator(".outcome.bad" if refusal else ".outcome.good")).to_contain_text(
        refusal, timeout=PATIENCE_MS
    )
    await dialog.get_by_role("button", name="Close").click()


async def set_override(planet: Planet, token: str, fields: dict[str, str]) -> None:
    """Set an override, as another operator would."""
    (where,) = control_plane_urls(planet.topology, planet.ports).values()
    async with httpx.AsyncClient(base_url=where, headers={"authorization": f"Bearer {token}"}) as http:
        body = {"reason": "another operator", "expires_in_s": "none"} | fields
        (await http.post("/v1/overrides", json=body)).raise_for_status()


async def lift_all(planet: Planet, token: str) -> None:
    """Lift every override of operators, as another operator would."""
    (where,) = control_plane_urls(planet.topology, planet.ports).values()
    async with httpx.AsyncClient(base_url=where, headers={"authorization": f"Bearer {token}"}) as http:
        active = [
            override for override in (await http.get("/v1/overrides")).json()["items"] if override["state"] == "active"
        ]
        for override in active:
            path = f"/v1/overrides/{override['override']['id']}"
            match = {"if-match": (await http.get(path)).headers["etag"]}
            (await http.delete(path, params={"reason": "a test"}, headers=match)).raise_for_status()


async def has_plan_of(planet: Planet, token: str, kind: str) -> bool:
    """Whether a plan that an override of that kind changed is kept, for the check of the past."""
    (where,) = control_plane_urls(planet.topology, planet.ports).values()
    async with httpx.AsyncClient(base_url=where, headers={"authorization": f"Bearer {token}"}) as http:
        for plan in (await http.get("/v1/plans")).json()["items"]:
            is_of = any(each.startswith(kind) for each in plan["circumstances"])
            if is_of and '"failover"' in (await http.get(f"/v1/plans/{plan['generation']}")).text:
                return True
    return False


def candidate_files() -> list[Path]:
    """The files of the policy that was rolled back, which differs from the one in force."""
    return sorted(POLICY.glob("*.yaml"))


async def sign_in(page: Page, planet: Planet, token: str) -> None:
    """A wrong key is refused; the right key creates a session that scripts cannot read."""
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
    await expect(page.locator(".map .region.healthy")).to_have_count(3, timeout=PATIENCE_MS)
    await expect(page.locator(".map .arc.spillover").first).to_be_attached(timeout=PATIENCE_MS)
    await expect(page.locator(".clients circle")).to_have_count(1, timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Clients by country")).to_contain_text("Germany")
    await expect(page.get_by_role("table", name="Models")).to_contain_text("slots")
    await expect(page.get_by_role("table", name="Spill credits")).to_contain_text("eu-es")
    await expect(page.get_by_role("table", name="Flows between regions")).to_contain_text("eu-es")
    await expect(page.locator(".spark").first).to_be_visible(timeout=PATIENCE_MS)
    await page.locator("details summary", has_text="Latest").click()
    await expect(page.locator(".events li").first).to_be_visible(timeout=PATIENCE_MS)


async def region(page: Page, planet: Planet, token: str) -> None:
    """The map leads to a region with its endpoints, pools and agents."""
    await page.locator(".map .region", has_text="eu-de").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="eu-de", exact=True)).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.locator(".cell")).to_have_count(2, timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Agents")).to_contain_text("in ", timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Pools")).to_contain_text("waiting")
    await expect(page.get_by_role("table", name="Served by")).to_contain_text("eu-es", timeout=PATIENCE_MS)


async def drain(page: Page, planet: Planet, token: str) -> None:
    """A drain shows the requests that it would move before confirmation, and can be lifted."""
    await act(page, "Drain…", "Drain", "a test of the page", expected="would be served elsewhere")
    await expect(page.get_by_role("table", name="Overrides")).to_contain_text("a test of the page", timeout=PATIENCE_MS)
    await act(page, "Undrain…", "Undrain", "the test is over", expected="a test of the page")
    await expect(page.get_by_role("table", name="Overrides")).to_contain_text("returning", timeout=PATIENCE_MS)


async def fail_over(page: Page, planet: Planet, token: str) -> None:
    """A failover moves the traffic at once, is drawn as an override, and is lifted in the list of overrides."""
    await act(page, "Fail over…", "Fail over", "corrupt responses", expected="as if it had failed")
    await page.click("nav >> text=Now")
    await expect(page.locator(".map .arc.override").first).to_be_attached(timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "override.png", full_page=True)
    await until_async(lambda: has_plan_of(planet, token, "fail_over"))
    await page.click("nav >> text=Change")
    await act(page, "Lift…", "Lift", "engines are replaced", expected="corrupt responses")
    await expect(page.get_by_role("button", name="Lift…")).to_have_count(0, timeout=PATIENCE_MS)


async def guarded(page: Page, planet: Planet, token: str) -> None:
    """A drain that the guard rails refuse is shown as refused, and offered to an admin who forces it alone."""
    await set_override(planet, token, {"kind": "fail_over", "region": "eu-es"})
    await page.goto(page.url.partition("#")[0] + "#/region/eu-de")
    await page.get_by_role("button", name="Drain…", exact=True).click()
    dialog = page.get_by_role("dialog")
    confirm = dialog.get_by_role("button", name="Drain", exact=True)
    await dialog.get_by_role("button", name="Show what it would do").click()
    await expect(dialog).to_contain_text("would leave residency class eu-de+eu-es no region", timeout=PATIENCE_MS)
    await expect(dialog.get_by_role("table", name="Classes without a region")).to_contain_text("eu-personal")
    await expect(dialog).to_contain_text("fail over")
    await dialog.get_by_label("Reason").fill("a test of guard rails")
    await page.screenshot(path=OUT / "guarded-dialog.png")
    await expect(confirm).to_be_disabled()
    await dialog.get_by_label("although guard rails refuse it").check()
    await expect(confirm).to_be_enabled()
    await dialog.get_by_label("although guard rails refuse it").uncheck()
    await expect(confirm).to_be_disabled()
    await dialog.get_by_role("button", name="Close").click()
    await lift_all(planet, token)


async def freeze(page: Page, planet: Planet, token: str) -> None:
    """A freeze shows the shares that stay; lifting it is refused if it has changed since it was shown."""
    await page.click("nav >> text=Change")
    await act(page, "Freeze the plan…", "Freeze", "a launch", expected="What would stay")
    await expect(page.get_by_role("table", name="Overrides")).to_contain_text("a launch", timeout=PATIENCE_MS)
    await page.get_by_role("button", name="Lift…").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Show what it would do").click()
    await expect(dialog.locator(".preview")).to_contain_text("a launch", timeout=PATIENCE_MS)
    await lift_all(planet, token)
    await dialog.get_by_label("Reason").fill("the launch is over")
    await dialog.get_by_role("button", name="Lift", exact=True).click()
    await expect(dialog.locator(".outcome.bad")).to_contain_text("changed meanwhile", timeout=PATIENCE_MS)
    await dialog.get_by_role("button", name="Close").click()


async def refused(page: Page, planet: Planet, token: str) -> None:
    """What cannot be done is not offered; an action that the API refuses shows the reason and changes nothing."""
    await page.goto(page.url.partition("#")[0] + "#/region/eu-es")
    await page.get_by_role("button", name="Undrain…", exact=True).click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="Show what it would do").click()
    await expect(dialog).to_contain_text("No operator drains it", timeout=PATIENCE_MS)
    await expect(dialog.get_by_role("button", name="Undrain", exact=True)).to_be_disabled()
    await dialog.get_by_role("button", name="Close").click()
    await page.get_by_role("button", name="Drain…", exact=True).click()
    await dialog.get_by_role("button", name="Show what it would do").click()
    await expect(dialog).to_contain_text("would be served elsewhere", timeout=PATIENCE_MS)
    await set_override(planet, token, {"kind": "drain", "region": "eu-es"})
    await dialog.get_by_label("Reason").fill("what another operator did meanwhile")
    await dialog.get_by_role("button", name="Drain", exact=True).click()
    await expect(dialog.locator(".outcome.bad")).to_contain_text("does this already", timeout=PATIENCE_MS)
    await dialog.get_by_role("button", name="Close").click()
    await lift_all(planet, token)


async def change(page: Page, planet: Planet, token: str) -> None:
    """The drain is in the audit trail with its author and reason."""
    await page.click("nav >> text=Change")
    await expect(page.get_by_role("table", name="Audit trail")).to_contain_text(
        "a test of the page", timeout=PATIENCE_MS
    )
    await expect(page.get_by_role("table", name="Agents")).to_contain_text("us-east")
    await expect(page.get_by_role("table", name="Changed shares")).to_be_visible(timeout=PATIENCE_MS)
    plans = page.get_by_label("From plan", exact=True)
    await plans.select_option(await plans.locator("option").last.get_attribute("value"))
    await expect(page.locator(".map .arc.more, .map .arc.less").first).to_be_attached(timeout=PATIENCE_MS)


async def roll_back(page: Page, planet: Planet, token: str) -> None:
    """A rollout shows its evidence and what it waits for; headings name the policy in force, after a rollback too."""
    await expect(page.locator(".phases [aria-current]")).to_have_text("done", timeout=PATIENCE_MS)
    found = re.search(r"policy [0-9a-f]{12}", await page.locator("#facts").inner_text())
    assert found is not None
    file = POLICY / "spillover.yaml"
    file.write_text(file.read_text().replace("0.8", "0.75"))
    await expect(page.locator(".phases [aria-current]")).to_have_text("canary", timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Evidence")).to_contain_text("candidate", timeout=PATIENCE_MS)
    await expect(page.get_by_role("table", name="Changes of the policy")).to_contain_text("0.75")
    await expect(page.get_by_text("judged from 50 requests on")).to_be_visible()
    await expect(page.get_by_text("of the canary").first).to_be_visible(timeout=PATIENCE_MS)
    await expect(page.locator("#facts")).to_contain_text(found[0])
    await expect(page.get_by_role("button", name="Halt", exact=True)).to_be_visible()
    await expect(page.get_by_role("button", name="Resume", exact=True)).to_have_count(0)
    await page.screenshot(path=OUT / "rollout.png", full_page=True)
    outlook = {term: re.sub(r"\s", " ", text) for term, text in await page.evaluate(OUTLOOK)}
    expected = {
        "Waits for": "20 of 50 requests; 60 s remain",
        "Not rolled out": "policy 0123456789ab of the source, number 1 in the queue: it waits; it begins in 5 min at"
        " the earliest",
        "Rollout of chat to v2": "preparing",
    }
    assert outlook == expected, outlook
    await act(page, "Roll back", "Roll back", "a try", expected="target_utilisation")
    await expect(page.locator(".phases [aria-current]")).to_have_text("rolled back", timeout=PATIENCE_MS)
    await expect(page.locator("main")).to_contain_text("does not start again by itself", timeout=PATIENCE_MS)
    await expect(page.locator("#facts")).to_contain_text(found[0], timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "rolled-back.png", full_page=True)


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
    await page.get_by_role("checkbox", name="us-east").uncheck()
    await page.get_by_label("or pasted").fill("kind: Nonsense")
    await page.get_by_role("button", name="Show what would move").click()
    await expect(page.get_by_text("pasted.yaml:1: kind")).to_be_visible(timeout=PATIENCE_MS)
    await page.get_by_label("or pasted").fill("")
    await page.get_by_label("Files of the bundle").set_input_files(candidate_files())
    await page.get_by_role("button", name="Show what would move").click()
    await expect(page.locator(".preview")).to_contain_text("Policy", timeout=PATIENCE_MS)


async def past(page: Page, planet: Planet, token: str) -> None:
    """The slider goes through the plans that are kept."""
    await page.click("nav >> text=Past")
    await expect(page.locator("output")).to_contain_text("UTC", timeout=PATIENCE_MS)
    latest = await page.locator("output").inner_text()
    await page.locator("#when").press("Home")
    await expect(page.locator("output")).not_to_have_text(latest, timeout=PATIENCE_MS)
    await page.get_by_role("button", name="One step forward").click()
    await expect(page.locator(".events [aria-current]")).to_be_visible(timeout=PATIENCE_MS)
    await _step_until(page, r"override\.fail_over")
    # On a busy machine the next plan can be one that the leader computed before it read the override.
    await _step_until_plan_has(page, ".map .arc.override")
    await page.screenshot(path=OUT / "past-override.png", full_page=True)


async def _step_until(page: Page, pattern: str) -> None:
    """Go forward in time until a moment is of that kind."""
    for _ in range(MAX_STEPS):
        await page.get_by_role("button", name="One step forward").click()
        if re.search(pattern, await page.locator("output").inner_text()):
            return
    raise AssertionError(f"no moment matches {pattern}")


async def _step_until_plan_has(page: Page, selector: str) -> None:
    """Go forward in time until a plan is shown with such an element."""
    for _ in range(MAX_STEPS):
        await _step_until(page, r": plan \d")
        plan = re.search(r"plan \d+", await page.locator("output").inner_text())
        assert plan is not None
        await expect(page.locator(".events [aria-current]")).to_contain_text(f"{plan[0]}:", timeout=PATIENCE_MS)
        if await page.locator(selector).count():
            return
    raise AssertionError(f"no plan has {selector}")


async def lost_region(page: Page, planet: Planet, token: str) -> None:
    """The failure of a region is shown by the stream, without a poll; the line states the delay."""
    await page.click("nav >> text=Now")
    await expect(page.locator(".map .region.healthy")).to_have_count(3, timeout=PATIENCE_MS)
    await asyncio.to_thread(planet.kill_region, "us-east")
    killed = time.monotonic()
    await page.wait_for_selector(".map .region.suspect, .map .region.failed", state="attached", timeout=PATIENCE_MS)
    suspected_s = time.monotonic() - killed
    await page.wait_for_selector(".map .region.failed", state="attached", timeout=PATIENCE_MS)
    print(
        f"(us-east was shown as suspect after {suspected_s:.2f} s, as failed after {time.monotonic() - killed:.2f} s)"
    )


async def lost_control_plane(page: Page, planet: Planet, token: str) -> None:
    """The page reports that the control plane does not answer, and returns by itself with its session."""
    await asyncio.to_thread(planet.kill, ["control plane north"])
    await expect(page.locator("#lost")).to_be_visible(timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "lost.png")
    await asyncio.to_thread(planet.restart_killed)
    await expect(page.locator("#lost")).to_be_hidden(timeout=PATIENCE_MS)
    await expect(page.locator(".map .region.healthy")).to_have_count(3, timeout=PATIENCE_MS)


CHECKS: tuple[Check, ...] = (
    sign_in,
    now,
    region,
    drain,
    fail_over,
    guarded,
    freeze,
    refused,
    change,
    roll_back,
    ask,
    past,
    tenants,
    usage,
    lost_region,
    lost_control_plane,
)


async def client(address: str) -> None:
    """Send requests in a loop, as one client."""
    async with httpx.AsyncClient(timeout=60.0) as http:
        while True:
            with suppress(httpx.HTTPError):
                await http.post(f"{address}/v1/chat/completions", headers=KEY, json=BODY | {"max_tokens": 200})
            await asyncio.sleep(BETWEEN_S)


async def run(browser: Browser, planet: Planet, token: str) -> int:
    """Run the checks in order; the number of those that failed."""
    page = await (await opened(browser)).new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    (where,) = control_plane_urls(planet.topology, planet.ports).values()
    await page.goto(f"{where}/ui")
    failed = 0
    for check in CHECKS:
        result = "ok"
        try:
            await check(page, planet, token)
        except (AssertionError, Error, httpx.HTTPError) as error:
            result = f"FAILED: {str(error)[:600]}"
            await page.screenshot(path=OUT / f"{check.__name__}-failed.png")
            await page.evaluate("document.querySelectorAll('dialog').forEach((dialog) => dialog.close())")
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
        async with running(directory, topology(), POLICY) as planet, async_playwright() as playwright:
            token = (directory / "state" / ADMIN_TOKEN_FILE).read_text().strip()
            frankfurt = url(planet.ports[agent_port("eu-de", "a", "traffic")])
            clients = [asyncio.create_task(client(frankfurt)) for _ in range(CLIENTS)]
            browser = await playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
            failed = await run(browser, planet, token)
            others_failed = await planet_checks.run(browser, planet, token) + await large_fleet_checks.run(browser)
            others_failed += await report_checks.run(browser)
            await browser.close()
            for asking in clients:
                asking.cancel()
    print(f"{failed + others_failed} checks failed; screenshots are in {OUT}")
    return 1 if failed or others_failed else 0


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(POLICY, ignore_errors=True)
    shutil.copytree(SHIPPED_BUNDLE, POLICY)
    (POLICY / "tiers.yaml").write_text(TIERS)
    shutil.rmtree(USAGE, ignore_errors=True)
    regions = ", ".join(each.name for each in topology().regions)
    (POLICY / "usage.yaml").write_text(policy_with_store(USAGE.resolve(), regions))
    sys.exit(asyncio.run(main()))
