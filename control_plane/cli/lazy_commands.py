"""Commands that are imported when they are asked for, so that each waits only for what it needs itself to load; and
whose faults, wherever they are found, are JSON where JSON is asked for.

After "Lazily Loading Subcommands" in Click's documentation. A list of all commands still imports all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

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
            ctx.meta[AS_JSON] = _wants_json(args)
            for word in args:
                if not _is_text(word):
                    error = typer.BadParameter(f"{word!a} is not UTF-8", ctx)
                    if ctx.meta[AS_JSON]:
                        _tell_as_json(error)
                    raise error
            return super().parse_args(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            try:
                return super().invoke(ctx)
            except Exception as error:
                if ctx.meta[AS_JSON]:
                    _tell_as_json(error)
                raise

    return OnDemand


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether a command line asks for JSON: looked for in the words, for those that cannot be understood ask too."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return any(
        word in ("-ojson", "--output=json") or (word in ("-o", "--output") and value == "json") for word, value in pairs
    )


def _is_text(word: str) -> bool:
    """Whether a word of the command line can be sent and printed; Python keeps other bytes of it as lone surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _tell_as_json(error: Exception) -> None:
    # Loaded when it is needed: an engine of the lab, for one, starts without all that operators' commands know.
    from control_plane.cli.error_output import error_report
    from control_plane.cli.output import print_json

    fault = error_report(error)
    if fault is not None:
        print_json({"error": fault})


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
