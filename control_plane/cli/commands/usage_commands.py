"""`penstock usage`: requests, tokens, GPU seconds and money by tenant, model, region or day; and statements."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from adapters.standard_output import results
from control_plane.cli.command_options import FleetOptions, with_fleet_options
from control_plane.cli.error_output import EXIT_FAILED, exit_on_error
from control_plane.cli.output import Output, OutputOption, print_as, print_json, print_view, table_of
from control_plane.usage.sla_report import QUESTIONS as SLA_QUESTIONS
from control_plane.usage.sla_report import SlaReport, make_report
from control_plane.usage.statement import QUESTIONS, make_statement, month_of, plain_cell, statement_csv, statement_html
from control_plane.usage.usage_request import Dimension, UsageAnswer, UsageOrder, UsageRow

USAGE_TIMEOUT_S = 70.0
"""Time limit (s) of a question; the control plane's own is shorter."""


class UsageOutput(StrEnum):
    """Format of the output."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


class StatementOutput(StrEnum):
    """Format of a statement."""

    CSV = "csv"
    HTML = "html"
    JSON = "json"


app = typer.Typer(help="Usage and cost, from the ledger.")


@app.callback(invoke_without_command=True)
@with_fleet_options
def usage(
    fleet: FleetOptions,
    ctx: typer.Context,
    by: Annotated[str, typer.Option(help="Dimensions: " + ", ".join(each.value for each in Dimension))] = "tenant",
    first: Annotated[
        str | None, typer.Option("--from", help="First day (UTC). Default: the first of the month.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="Last day (UTC), included. Default: today.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    top: Annotated[int | None, typer.Option(help="Only the largest groups, and the sums of the others.")] = None,
    order: Annotated[UsageOrder, typer.Option(help="With --top: what groups are ordered by.")] = UsageOrder.REQUESTS,
    cost: Annotated[bool, typer.Option("--cost", help="With prices, and costs of GPUs and burst endpoints.")] = False,
    output: Annotated[UsageOutput, typer.Option("--output", "-o", help="Output format.")] = UsageOutput.TABLE,
) -> None:
    """Show usage of a range of days, from the ledger. What the sums lack is listed below them."""
    if ctx.invoked_subcommand is not None:
        return
    with exit_on_error("usage"), fleet.connect(timeout_s=USAGE_TIMEOUT_S) as api:
        wanted = {"by": by, "from": first, "to": last, "tenant": tenant, "top": top, "order": order.value}
        answer = api.request("GET", "/v1/usage", params=wanted).decoded(UsageAnswer)
    match output:
        case UsageOutput.JSON:
            print_json(answer)
        case UsageOutput.TABLE:
            print_view(_view(answer, cost=cost))
        case UsageOutput.CSV:
            _write_csv(answer, cost=cost)
        case UsageOutput.PARQUET:
            _write_parquet(answer, cost=cost)


@app.command()
@with_fleet_options
def statement(
    fleet: FleetOptions,
    tenant: Annotated[str, typer.Option(help="Name of the tenant.")],
    month: Annotated[str, typer.Option(help="Month, such as 2026-11.")],
    output: Annotated[StatementOutput, typer.Option("--output", "-o", help="Output format.")] = StatementOutput.CSV,
) -> None:
    """Print the statement of a tenant for a month: CSV, or a page to print."""
    found = make_statement(tenant, _usage_of_month(fleet, month, tenant, QUESTIONS), datetime.now(UTC).date())
    if not found.by_model:
        print(f"no records of a tenant {tenant} in {month}", file=sys.stderr)
    if output is StatementOutput.JSON:
        print_json(found)
    else:
        print(statement_csv(found) if output is StatementOutput.CSV else statement_html(found), end="", file=results())


@app.command()
@with_fleet_options
def sla(
    fleet: FleetOptions,
    month: Annotated[str, typer.Option(help="Month, such as 2026-11.")],
    tenant: Annotated[str | None, typer.Option(help="Only this tenant.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the service objectives of all tenants in a month, kept or missed. Exit with 1 if one is missed."""
    report = make_report(month, _usage_of_month(fleet, month, tenant, SLA_QUESTIONS), datetime.now(UTC).date())
    print_as(output, report, lambda: _sla_view(report))
    if not all(row.is_kept for row in report.objectives):
        raise typer.Exit(EXIT_FAILED)


def _usage_of_month(
    fleet: FleetOptions, month: str, tenant: str | None, questions: Sequence[Sequence[str]]
) -> list[UsageAnswer]:
    """Return the usage of a month, grouped in the way of each question."""
    try:
        first, last = month_of(month)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--month") from None
    with exit_on_error("usage"), fleet.connect(timeout_s=USAGE_TIMEOUT_S) as api:
        days = {"from": first.isoformat(), "to": last.isoformat(), "tenant": tenant}
        return [
            api.request("GET", "/v1/usage", params={**days, "by": ",".join(by)}).decoded(UsageAnswer)
            for by in questions
        ]


def _sla_view(report: SlaReport) -> RenderableType:
    numbers = ("requests", "within", "target", "error budget used", "answered")
    table = table_of(
        "tenant", "model", "objective", *numbers, "", title=f"Service objectives in {report.month}", right=numbers
    )
    for row in report.objectives:
        table.add_row(
            row.tenant,
            row.model,
            row.objective,
            f"{row.requests:,}",
            f"{row.share:.3%}",
            f"{row.target_share:.3%}",
            f"{row.used_budget:.0%}",
            "-" if row.answered_share is None else f"{row.answered_share:.3%}",
            Text("kept", "green") if row.is_kept else Text("missed", "bold red"),
        )
    notes = [Text(f"missing: {line}", "yellow") for line in report.missing]
    if not report.objectives:
        notes.insert(0, Text("no service objective counts requests of this month"))
    return Group(table, *notes)


def columns_of(answer: UsageAnswer, by: Sequence[str], *, cost: bool) -> tuple[list[str], list[list[Any]]]:
    """Return the headings, and the values of each row."""
    sums = ["requests", "unknown_requests", "input_tokens", "cached_tokens", "output_tokens", "overhead_tokens"]
    sums += ["estimated_requests", "gpu_s", "overhead_gpu_s", "egress_bytes"]
    sums += ["price", "gpu_cost", "burst_s", "burst_cost"] if cost else []
    rows = [[*_names(row, by), *(getattr(row, name) for name in sums)] for row in _rows(answer)]
    return [*by, *sums], rows


def _rows(answer: UsageAnswer) -> tuple[UsageRow, ...]:
    return answer.rows if answer.others is None else (*answer.rows, answer.others)


def _names(row: UsageRow, by: Sequence[str]) -> list[str]:
    """Return the group of a row; that of the other groups has a name that no tenant, model or region can have."""
    return [row.group[name] for name in by] if row.group or not by else ["(others)"] + [""] * (len(by) - 1)


def _dimensions(answer: UsageAnswer) -> list[str]:
    return list(answer.rows[0].group) if answer.rows else []


def _view(answer: UsageAnswer, *, cost: bool) -> RenderableType:
    names = _dimensions(answer)
    numbers = ["requests", "input tokens", "cached", "output tokens", "GPU h"]
    money = [f"price {answer.currency}".strip(), "GPU cost", "burst h", "burst cost"] if cost else []
    title = f"Usage from {answer.first_day} to {answer.last_day} (UTC)"
    table = table_of(*names, *numbers, *money, title=title, right=[*numbers, *money])
    for row in _rows(answer):
        costs = [_money(row.price), _money(row.gpu_cost), f"{row.burst_s / 3600:,.2f}", _money(row.burst_cost)]
        table.add_row(*_names(row, names), *_numbers(row), *(costs if cost else []))
    notes = [Text(f"missing: {line}", "yellow") for line in answer.missing]
    if not answer.rows:
        notes.insert(0, Text("no records in this time"))
    return Group(table, *([_idle(answer, cost=cost)] if answer.capacity else []), *notes)


def _idle(answer: UsageAnswer, *, cost: bool) -> RenderableType:
    names = list(answer.capacity[0].group)
    numbers = ["GPU h ready", "not ready", "used", "idle", *(["idle cost"] if cost else []), "known for h"]
    table = table_of(*names, *numbers, title="GPU time that served nothing", right=numbers)
    for row in answer.capacity:
        hours = [f"{seconds / 3600:,.2f}" for seconds in (row.ready_gpu_s, row.unready_gpu_s, row.used_gpu_s)]
        money = [_money(row.idle_cost)] if cost else []
        table.add_row(*row.group.values(), *hours, f"{row.idle_share:.1%}", *money, f"{row.known_s / 3600:,.1f}")
    return table


def _numbers(row: UsageRow) -> list[str]:
    counts = (row.requests, row.input_tokens, row.cached_tokens, row.output_tokens)
    return [*(f"{count:,}" for count in counts), f"{row.gpu_s / 3600:,.2f}"]


def _money(amount: float) -> str:
    return f"{amount:,.2f}"


def _write_csv(answer: UsageAnswer, *, cost: bool) -> None:
    headings, rows = columns_of(answer, _dimensions(answer), cost=cost)
    writer = csv.writer(results(), lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([plain_cell(each) if isinstance(each, str) else each for each in row] for row in rows)
    _print_missing(answer)


def _write_parquet(answer: UsageAnswer, *, cost: bool) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise typer.BadParameter("needs pyarrow; install penstock[usage]", param_hint="--output") from None
    headings, rows = columns_of(answer, _dimensions(answer), cost=cost)
    table = pa.table({name: [row[index] for row in rows] for index, name in enumerate(headings)})
    if sys.stdout.isatty():
        raise typer.BadParameter("parquet is binary; redirect the output to a file", param_hint="--output")
    pq.write_table(table, results().buffer)
    _print_missing(answer)


def _print_missing(answer: UsageAnswer) -> None:
    for line in answer.missing:
        print(f"missing: {line}", file=sys.stderr)
