"""Renders SVG and HTML elements as text, with escaped attributes and rounded numbers."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape


def tag(name: str, content: str | Iterable[str] = "", /, **attributes: object) -> str:
    """Return an element. `class_` and `stroke_width` become class and stroke-width; None omits the attribute.

    `content` is markup and is not escaped; escape text with `text` first.
    """
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inner = content if isinstance(content, str) else "".join(content)
    return f"<{name}{spelled}>{inner}</{name}>"


def text(value: object) -> str:
    """Return the value as escaped text."""
    return escape(str(value))


def number(value: object) -> str:
    """Return a float with at most one decimal, any other value as its string."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
