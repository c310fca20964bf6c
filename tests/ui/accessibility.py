"""Accessibility of a page by axe-core (https://github.com/dequelabs/axe-core), in light and dark."""

from __future__ import annotations

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

SCHEMES = ("light", "dark")

COUNTED = frozenset({"serious", "critical"})
"""Impacts of findings that fail a check."""

RULES = {
    "resultTypes": ["violations"],
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
}


async def findings(page: Page) -> list[str]:
    """Return the serious findings of axe for the current page, each with its rule and the first element."""
    found = []
    for scheme in SCHEMES:
        await page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for violation in (await Axe().run(page, options=RULES)).response["violations"]:
            if violation["impact"] in COUNTED:
                nodes = violation["nodes"]
                found.append(f"{violation['id']} ({scheme}, {len(nodes)} times): {nodes[0]['html'][:160]}")
    await page.emulate_media(color_scheme="light")
    return found
