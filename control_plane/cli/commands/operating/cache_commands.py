"""`penstock cache`: purge kept responses, and list the purges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.table import Table

from control_plane.cli.command_options import ChangeClient, ReadClient, ReasonOption, with_fleet_options
from control_plane.cli.error_output import UsageFault
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from control_plane.cli.views.tenant_view import moment
from control_plane.page import Page
from penstock.result_cache.cache_purges import EVERY_MODEL, CachePurge

PATH = "/v1/result-cache/purges"

app = typer.Typer(no_args_is_help=True, help="Purge responses that the result cache keeps.")


@app.command()
@with_fleet_options
def purge(
    api: ChangeClient,
    reason: ReasonOption,
    model: Annotated[str | None, typer.Option(help="Name of the model, model version or adapter.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Purge the responses of all models.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Purge kept responses: agents send none of them again, such as after an engine received new weights.

    Give --model or --all.
    """
    if (model is None) != everything:
        raise UsageFault("give either --model or --all")
    body = {"model": EVERY_MODEL if model is None else model, "reason": reason}
    purged = api.request("POST", PATH, body=body, changes=True).decoded(CachePurge)
    print_as(output, purged, lambda: _table([purged]))


@app.command()
@with_fleet_options
def purges(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """List the newest purge of each model."""
    found = api.listed(PATH, Page[CachePurge])
    print_as(output, found, lambda: _table(found))


def _table(purges: Sequence[CachePurge]) -> Table:
    table = table_of("model", "at", "author", "reason")
    for each in purges:
        table.add_row(each.model, moment(each.at), each.author, each.reason)
    return table
