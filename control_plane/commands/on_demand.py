"""Commands that are imported when they are asked for, so that each waits only for what it needs itself to load; and
whose faults, wherever they are found, are JSON where JSON is asked for.

After "Lazily Loading Subcommands" in Click's documentation. A list of all commands still imports all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from control_plane.commands.faults import fault_of, wants_json
from control_plane.commands.output import print_json

AS_JSON = "penstock.json"
"""In the context: whether the command line asks for JSON."""


def on_demand(places: Mapping[str, str]) -> type[TyperGroup]:
    """A group for `typer.Typer(cls=...)`.

    Args:
        places: by name, where each command is as `module:attribute`: a function, or an app with commands of its own.
    """

    class OnDemand(TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, "commands": None})
            self.commands = _Commands(places)  # type: ignore[assignment]

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.meta[AS_JSON] = wants_json(args)
            return super().parse_args(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except Exception as error:
                fault = fault_of(error) if ctx.meta[AS_JSON] else None
                if fault is not None:
                    print_json({"error": fault})
                raise

    return OnDemand


class _Commands(Mapping[str, Any]):
    """All commands by name, each made when it is looked up; a name that is only read costs nothing."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self._places[name].partition(":")
        found = getattr(import_module(module), attribute)
        around = typer.Typer(add_completion=False)
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=name)
        else:
            around.command(name)(found)
        return typer.main.get_group(around).commands[name]
