"""How a page looks: accessibility by axe-core (https://github.com/dequelabs/axe-core), width, and screenshots."""

from __future__ import annotations

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.ui.checks import OUT, PHONE, WIDE

SCHEMES = ("light", "dark")

COUNTED = frozenset({"serious", "critical"})
"""Impacts of findings that fail a check."""

RULES = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}


async def findings(page: Page, name: str) -> list[str]:
    """Return what is wrong with the current page at each width, in light and dark, and take a screenshot of each.

    That is serious findings of axe, each with its rule and the first element, and content that is wider than the page.
    Screenshots are `NAME-WIDTH-SCHEME.png`.
    """
    found = []
    for size in (PHONE, WIDE):
        await page.set_viewport_size(size)
        width = await page.evaluate("document.documentElement.scrollWidth")
        if width > size["width"]:
            found.append(f"{width} px wide on a screen of {size['width']} px")
        for scheme in SCHEMES:
            await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            for violation in (await Axe().run(page, options=RULES)).response["violations"]:
                if violation["impact"] in COUNTED:
                    nodes = violation["nodes"]
                    where = f"{size['width']} px, {scheme}, {len(nodes)} times"
                    found.append(f"{violation['id']} ({where}): {nodes[0]['html'][:160]}")
            await page.screenshot(path=OUT / f"{name}-{size['width']}-{scheme}.png", full_page=True)
    await page.emulate_media(color_scheme="light")
    return found
