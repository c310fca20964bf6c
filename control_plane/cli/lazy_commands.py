"""Lazy import of commands, so that each command loads only its own modules; and errors as JSON with `-o json`.

See "Lazily Loading Subcommands" in Click's documentation. The list of all commands still imports all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from adapters.garbage_collection import uncollected
from adapters.standard_output import results_only

AS_JSON = "penstock.json"
"""Key in the context: whether the output is JSON."""


def lazy_group(places: Mapping[str, str]) -> type[TyperGroup]:
    """Return a command group for `typer.Typer(cls=...)`.

    Args:
        places: by name, `module:attribute` of each command: a function, or an app with subcommands.
    """

    class LazyGroup(TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, "commands": None})
            self.commands = _Commands(places)  # type: ignore[assignment]

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            ctx.meta[AS_JSON] = _wants_json(args)
            for word in args:
                if not _is_text(word):
                    error = typer.BadParameter(f"{word!a} is not UTF-8", ctx)
                    if ctx.meta[AS_JSON]:
                        _print_json_error(error)
                    raise error
            return super().parse_args(ctx, args)

        def invoke(self, ctx: Any) -> Any:
            if not ctx.meta[AS_JSON]:
                return super().invoke(ctx)
            with results_only():
                try:
                    return super().invoke(ctx)
                except Exception as error:
                    _print_json_error(error)
                    raise

    return LazyGroup


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line has `-o json`. Searches the arguments, because an invalid line is not parsed."""
    pairs = zip(arguments, [*arguments[1:], ""], strict=False)
    return any(
        word in ("-ojson", "--output=json") or (word in ("-o", "--output") and value == "json") for word, value in pairs
    )


def _is_text(word: str) -> bool:
    """Whether an argument is valid UTF-8; Python represents other bytes as lone surrogates."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _print_json_error(error: Exception) -> None:
    # Imported late, so that the lab's commands start without the operator's commands.
    from control_plane.cli.error_output import error_report
    from control_plane.cli.output import print_json

    report = error_report(error)
    if report is not None:
        print_json({"error": report})


class _Commands(Mapping[str, Any]):
    """All commands by name; a command is imported when it is looked up."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, name: str) -> Any:
        module, _, attribute = self._places[name].partition(":")
        with uncollected():
            found = getattr(import_module(module), attribute)
        wrapper = typer.Typer(add_completion=False)
        if isinstance(found, typer.Typer):
            wrapper.add_typer(found, name=name)
        else:
            wrapper.command(name)(found)
        return typer.main.get_group(wrapper).commands[name]
