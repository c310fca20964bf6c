"""Output of commands: tables for people, JSON for programs.

Tables print every value whole and literally: long values wrap, rich markup is off, and control characters are replaced,
because reasons, names and error messages come from other people and machines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from adapters.standard_output import results

MAX_WIDTH_CHARS = 10_000
"""Width of output that goes to a file or another program, so that lines do not wrap."""

_BIDI = (0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that end a line or change the direction of text."""

_REPLACED = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0), *_BIDI) if code != ord("\n")}


class Output(StrEnum):
    """Format of the output."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]


def table_of(*columns: str, title: str | None = None, right: Sequence[str] = ()) -> Table:
    """Return an empty table.

    Args:
        columns: headings.
        title: printed above the table.
        right: names of the columns that are right-aligned, such as numbers.
    """
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


class PlainConsole(Console):
    """A console without markup; control characters in printed values are replaced, and only terminals wrap lines."""

    def __init__(self, **given: Any) -> None:
        """Print to stdout unless `given`, the arguments of rich's Console, name another file."""
        if not sys.stdout.isatty():
            given.setdefault("width", MAX_WIDTH_CHARS)
        super().__init__(markup=False, emoji=False, highlight=False, **given)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of `renderable` with control characters replaced."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(segment.text.translate(_REPLACED), segment.style)


def print_as(output: Output, value: Any, view: Callable[[], RenderableType]) -> None:
    """Print a value as JSON, or its view as a table.

    Args:
        output: the format.
        value: for JSON: a value, or bytes that are JSON already.
        view: returns the renderable of table output.
    """
    if output is Output.JSON:
        print_json(value)
    else:
        print_view(view())


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; bytes are JSON already."""
    text = value.decode() if isinstance(value, bytes) else msgspec.json.encode(value).decode()
    print(text, file=results(), flush=True)


def print_view(view: RenderableType) -> None:
    """Print a view on stdout."""
    PlainConsole().print(view)
