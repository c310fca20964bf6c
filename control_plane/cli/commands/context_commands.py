"""`penstock context`: name the control planes of several fleets, so that commands need no URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from control_plane.cli.contexts import (
    Context,
    Contexts,
    check,
    context_names,
    contexts_file,
    load_contexts,
    save_contexts,
)
from control_plane.cli.error_output import UsageFault, exit_on_error
from control_plane.cli.output import Output, OutputOption, print_as, print_json, table_of

app = typer.Typer(no_args_is_help=True, help="Manage contexts: named fleets with their control planes.")

NameArgument = Annotated[str, typer.Argument(help="Name of the context.", show_default=False)]
KnownNameArgument = Annotated[
    str, typer.Argument(help="Name of the context.", show_default=False, autocompletion=context_names)
]


@app.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """List contexts. A star marks the current context."""
    with exit_on_error("context list"):
        known = load_contexts()
    print_as(output, known, lambda: _table(known))


def _table(known: Contexts) -> Table:
    table = table_of("", "name", "control planes", "token file", title=str(contexts_file()))
    for name, context in sorted(known.contexts.items()):
        star = "*" if name == known.current else ""
        table.add_row(star, name, "\n".join(context.urls), context.token_file or "")
    return table


@app.command()
def use(name: KnownNameArgument, output: OutputOption = Output.TABLE) -> None:
    """Set the current context, which commands use by default."""
    with exit_on_error("context use"):
        known = load_contexts()
        known.named(name)
        file = save_contexts(msgspec.structs.replace(known, current=name))
    _done(output, name, file, f"the current context is {name}")


@app.command()
def add(
    name: NameArgument,
    url: Annotated[str, typer.Option(help="Base URLs of the control planes, comma-separated.", show_default=False)],
    token_file: Annotated[Path | None, typer.Option(help="File with your token; only its path is stored.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="PEM file of the authorities that sign certificates.")] = None,
    agents_key_file: Annotated[
        Path | None, typer.Option(help="File with your API key for agents; only its path is stored.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace a context of the same name.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add a context. The first context becomes the current context."""
    urls = tuple(part.strip().rstrip("/") for part in url.split(",") if part.strip())
    context = Context(urls, _absolute(token_file), _absolute(ca_file), _absolute(agents_key_file))
    with exit_on_error("context add"):
        check(name, context)
        known = load_contexts()
        if name in known.contexts and not replace:
            raise UsageFault(f"context {name} exists; give --replace to replace it")
        file = save_contexts(
            msgspec.structs.replace(known, contexts=known.contexts | {name: context}, current=known.current or name)
        )
    _done(output, name, file, f"added {name} to {file}")


@app.command()
def remove(name: KnownNameArgument, output: OutputOption = Output.TABLE) -> None:
    """Remove a context."""
    with exit_on_error("context remove"):
        known = load_contexts()
        known.named(name)
        left = {other: context for other, context in known.contexts.items() if other != name}
        current = None if known.current == name else known.current
        file = save_contexts(msgspec.structs.replace(known, contexts=left, current=current))
    _done(output, name, file, f"removed {name}")


def _done(output: Output, name: str, file: Path, message: str) -> None:
    if output is Output.JSON:
        print_json({"context": name, "file": str(file)})
    else:
        print(message)


def _absolute(file: Path | None) -> str | None:
    return str(file.expanduser().absolute()) if file is not None else None
