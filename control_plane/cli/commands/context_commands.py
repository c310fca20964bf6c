"""`penstock context`: several fleets' control planes by name, so that commands need no URLs."""

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

app = typer.Typer(no_args_is_help=True, help="Name control planes, and choose among them.")

NameArgument = Annotated[str, typer.Argument(help="The context's name.", show_default=False)]
KnownNameArgument = Annotated[
    str, typer.Argument(help="The context's name.", show_default=False, autocompletion=context_names)
]


@app.command("list")
def list_(output: OutputOption = Output.TABLE) -> None:
    """Show every context; the one in use has a star."""
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
    """Use a context in every command that names no other."""
    with exit_on_error("context use"):
        known = load_contexts()
        known.named(name)
        file = save_contexts(msgspec.structs.replace(known, current=name))
    _done(output, name, file, f"using {name}")


@app.command()
def add(
    name: NameArgument,
    url: Annotated[str, typer.Option(help="Base URLs of its control planes, comma-separated.", show_default=False)],
    token_file: Annotated[Path | None, typer.Option(help="File with your token; only its name is kept.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="Authorities that sign their certificates.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of one of the same name.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add a context; the first one is used at once."""
    urls = tuple(one.strip().rstrip("/") for one in url.split(",") if one.strip())
    context = Context(urls, _absolute(token_file), _absolute(ca_file))
    with exit_on_error("context add"):
        check(name, context)
        known = load_contexts()
        if name in known.contexts and not replace:
            raise UsageFault(f"there is a context {name} already; give --replace to put this one in its place")
        file = save_contexts(
            msgspec.structs.replace(known, contexts=known.contexts | {name: context}, current=known.current or name)
        )
    _done(output, name, file, f"{name} is in {file}")


@app.command()
def remove(name: KnownNameArgument, output: OutputOption = Output.TABLE) -> None:
    """Forget a context."""
    with exit_on_error("context remove"):
        known = load_contexts()
        known.named(name)
        left = {other: context for other, context in known.contexts.items() if other != name}
        current = None if known.current == name else known.current
        file = save_contexts(msgspec.structs.replace(known, contexts=left, current=current))
    _done(output, name, file, f"{name} is forgotten")


def _done(output: Output, name: str, file: Path, told: str) -> None:
    if output is Output.JSON:
        print_json({"context": name, "file": str(file)})
    else:
        print(told)


def _absolute(file: Path | None) -> str | None:
    return str(file.expanduser().absolute()) if file is not None else None
