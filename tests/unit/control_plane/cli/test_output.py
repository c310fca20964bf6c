"""Tables show every value unchanged, in any width."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Group
from rich.text import Text

from control_plane.cli.output import PlainConsole, table_of

LONG = "eu-de+eu-es+eu-gb+jp-tok+us-east+and-some-more-of-them"


def shown(*cells: str, **given: object) -> str:
    table = table_of("first", *(f"column {number}" for number in range(1, len(cells))), title="Cells")
    table.add_row(*cells)
    file = StringIO()
    PlainConsole(file=file, **given).print(Group(table, Text(cells[0])))
    return file.getvalue()


def test_output_to_a_file_is_not_wrapped() -> None:
    assert f"│ {LONG} │ {LONG} │ {LONG} │" in shown(LONG, LONG, LONG)


def test_a_narrow_terminal_wraps_and_cuts_nothing() -> None:
    text = shown(LONG, "7", width=30)
    assert max(map(len, text.splitlines())) <= 30
    assert "…" not in text
    rows = [line.split("│")[1].strip() for line in text.splitlines() if line.count("│") == 3]
    assert "".join(rows) == LONG


@pytest.mark.parametrize("text", ["see [/red] context", "[bold red]urgent", "[fe80::1]:8000", ":smile:"])
def test_values_are_not_interpreted_as_markup(text: str) -> None:
    assert shown(text).count(text) == 2


@pytest.mark.parametrize("control", ["\x1b[2J", "\x9b2J", "\r", "\x08", "\x7f", "\x00", "\u202e", "\u2028"])
def test_control_characters_do_not_reach_the_terminal(control: str) -> None:
    text = shown(f"harmless{control}?")
    assert control[0] not in text
    assert "harmless" in text
