"""Tables of which nothing is lost: what has no room is wrapped, and what is shown is never taken for markup.

Reasons, names and errors come from whoever wrote them. A `[/]` among them must not break a table, nor a control
character move the cursor of the terminal that shows it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

WIDEST = 10_000
"""Columns of what is no terminal: a file or another program gets every line whole."""

_TURNS = (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that end a line or turn its direction."""

_HARMLESS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0), *_TURNS) if code != ord("\n")}


def table_of(*columns: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """An empty table.

    Args:
        columns: their heads.
        title: what stands above it.
        right: those of `columns` that are aligned to the right, as numbers are.
    """
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


class PlainConsole(Console):
    """Prints views as they are: no markup, no control characters but its own; and whole to what is no terminal."""

    def __init__(self, **given: Any) -> None:
        """To stdout, unless what is given says otherwise: it goes to rich's Console."""
        if not sys.stdout.isatty():
            given.setdefault("width", WIDEST)
        super().__init__(markup=False, emoji=False, highlight=False, **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Its segments, whatever is in it made harmless."""
        for one in super().render(renderable, options):
            yield one if one.control else Segment(one.text.translate(_HARMLESS), one.style)
