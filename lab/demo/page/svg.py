"""Writing SVG and HTML as text: elements with escaped attributes, numbers short enough to read."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def tag(name: str, content: str | Iterable[str] = "", /, **attributes: object) -> str:
    """One element. `class_` and `stroke_width` become class and stroke-width; None leaves an attribute out.

    `content` is markup and not escaped: pass text through `text` first.
    """
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = content if isinstance(content, str) else "".join(content)
    return f"<{name}{spelled}>{inner}</{name}>"


def text(value: object) -> str:
    """Escaped text."""
    return escape(str(value))


def number(value: object) -> str:
    """A float with one decimal at most, anything else as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def colour(region: str) -> str:
    """The colour that means this region everywhere on the page; the page defines it for light and dark."""
    return f"var(--{region})"
