"""Checks of the page's views of tenants."""

from __future__ import annotations

from playwright.async_api import Locator, Page, expect

from lab.planet.planet import Planet
from tests.ui.checks import OUT, PATIENCE_MS


async def tenants(page: Page, planet: Planet, token: str) -> None:
    """A tenant and a key are created, the key is shown once and revoked, and the tenant is suspended and deleted."""
    await page.goto(page.url.partition("#")[0] + "#/tenants")
    listed = page.get_by_role("table", name="Tenants")
    await expect(listed).to_contain_text("policy", timeout=PATIENCE_MS)
    dialog = await _confirmed(page, "Create a tenant", "Create", {"Name": "acme", "Tier": "glod"}, is_refused=True)
    await expect(dialog.locator(".outcome")).to_contain_text("did you mean gold?")
    await dialog.get_by_role("button", name="Close").click()
    await _confirmed(page, "Create a tenant", "Create", {"Name": "acme", "Tier": "gold", "Note": "a team"})
    await page.get_by_label("Search by name").fill("acm")
    await expect(listed.locator("tbody tr")).to_have_count(1, timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "tenants-list.png", full_page=True)
    await page.get_by_role("link", name="acme").click()
    await expect(page.get_by_role("heading", name="acme")).to_be_visible(timeout=PATIENCE_MS)

    await expect(page.get_by_role("table", name="Budgets")).to_contain_text("tokens per minute", timeout=PATIENCE_MS)
    dialog = await _confirmed(page, "Create a key", "Create", {"Note": "app"}, stays_open=True)
    shown = await dialog.locator(".outcome").text_content() or ""
    key, _, _ = shown.partition(" ")
    assert key.startswith("psk-"), shown
    await dialog.get_by_role("button", name="Close").click()
    keys = page.get_by_role("table", name="Keys")
    await expect(keys).to_contain_text(key[:16], timeout=PATIENCE_MS)
    assert key not in await page.content(), "the key is shown once"
    await _confirmed(page, "Revoke", "Revoke")
    await expect(keys).to_contain_text("revoked", timeout=PATIENCE_MS)
    await _confirmed(page, "Suspend", "Suspend")
    await expect(page.get_by_role("button", name="Resume…")).to_be_visible(timeout=PATIENCE_MS)
    await page.screenshot(path=OUT / "tenant.png", full_page=True)
    await _confirmed(page, "Delete", "Delete")
    await expect(page.locator("main .bad")).to_contain_text("there is no tenant", timeout=PATIENCE_MS)


async def _confirmed(
    page: Page,
    opener: str,
    confirm: str,
    fields: dict[str, str] | None = None,
    *,
    is_refused: bool = False,
    stays_open: bool = False,
) -> Locator:
    """Fill in and confirm the dialog of an action; close it, unless it is refused or stays open."""
    await page.get_by_role("button", name=f"{opener}…", exact=True).click()
    dialog = page.get_by_role("dialog")
    for label, value in (fields or {}).items():
        await dialog.get_by_label(label).fill(value)
    await dialog.get_by_label("Reason").fill("a test")
    await dialog.get_by_role("button", name="Show what it would do").click()
    button = dialog.get_by_role("button", name=confirm, exact=True)
    await expect(button).to_be_enabled(timeout=PATIENCE_MS)
    await button.click()
    outcome = dialog.locator(".outcome.bad" if is_refused else ".outcome.good")
    await expect(outcome).not_to_have_text("", timeout=PATIENCE_MS)
    if not is_refused and not stays_open:
        await dialog.get_by_role("button", name="Close").click()
    return dialog
