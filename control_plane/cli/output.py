"""What commands print: tables for people, or JSON for what reads them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer
from rich.console import RenderableType

from control_plane.cli.table import PlainConsole


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print.")]


def print_as(output: Output, told: Any, view: Callable[[], RenderableType]) -> None:
    """Print what was told, for programs or for people.

    Args:
        told: what JSON holds, or its bytes as a control plane gave them.
        view: makes what people read.
    """
    if output is Output.JSON:
        print_json(told)
    else:
        print_view(view())


def print_json(value: Any) -> None:
    """Print a value as one line of JSON; bytes are JSON already."""
    print(value.decode() if isinstance(value, bytes) else msgspec.json.encode(value).decode(), flush=True)


def print_view(view: RenderableType) -> None:
    """Print what people read."""
    PlainConsole().print(view)
