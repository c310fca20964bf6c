"""Output that is refreshed until Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

from rich.console import RenderableType
from rich.live import Live

from control_plane.cli.api_client import ApiError
from control_plane.cli.error_output import print_error
from control_plane.cli.output import Output, PlainConsole, print_as

T = TypeVar("T")


def show_repeatedly(
    command: str, fetch: Callable[[], T], view: Callable[[T], RenderableType], output: Output, every_s: float
) -> None:
    """Fetch and print a value again and again, and continue while no control plane answers. Ctrl-C ends it.

    A terminal is updated in place; a file or pipe gets one output after the other.

    Args:
        command: name of the command, for messages.
        every_s: time (s) between two fetches.
    """
    console = PlainConsole()
    # A live view would only write the last output to a file.
    in_place = output is Output.TABLE and console.is_terminal
    try:
        with Live(console=console, auto_refresh=False) if in_place else nullcontext() as live:
            while True:
                try:
                    value = fetch()
                except ApiError as error:
                    if error.is_usage_error:
                        raise
                    print_error(command, str(error))
                else:
                    if live is None:
                        _print(value, view, output)
                    else:
                        live.update(view(value), refresh=True)
                time.sleep(every_s)
    except KeyboardInterrupt:
        return


def _print(value: T, view: Callable[[T], RenderableType], output: Output) -> None:
    print_as(output, value, lambda: view(value))
