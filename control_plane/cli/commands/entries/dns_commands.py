"""`penstock dns`: what DNS names resolve to, and their records for DNS servers of others."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.text import Text

from adapters.configuration.setting_values import host_port
from control_plane.cli.api_client import ApiClient, ApiError
from control_plane.cli.command_options import ChangeClient, ReadClient, with_fleet_options
from control_plane.cli.error_output import EXIT_FAILED, UsageFault, print_error
from control_plane.cli.output import Output, OutputOption, print_as, table_of
from control_plane.status.query_responses import DnsResponse
from penstock.dns.exports import dns_endpoint, octodns_zone
from penstock.dns.record_sets import NameRecords

app = typer.Typer(no_args_is_help=True, help="Show what DNS names resolve to, and publish their records elsewhere.")


class ExportFormat(StrEnum):
    """Format of exported records."""

    OCTODNS = "octodns"
    EXTERNAL_DNS = "external-dns"


@app.callback()
def _dns() -> None:
    """Show what DNS names resolve to, and publish their records elsewhere."""


@app.command()
@with_fleet_options
def explain(
    api: ReadClient,
    name: Annotated[str | None, typer.Argument(help="Name (default: every name of the policy).")] = None,
    ip: Annotated[str | None, typer.Option(help="Address in the client subnet of the query.")] = None,
    country: Annotated[str | None, typer.Option(help="Country of the client subnet instead, such as DE.")] = None,
    subdivision: Annotated[str | None, typer.Option(help="Subdivision of the country, such as BY.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what names resolve to and why; without --ip or --country, for queries without a client subnet."""
    params = {"name": name, "ip": ip, "country": country, "subdivision": subdivision}
    answer = api.request("GET", "/v1/dns", params=params)
    found = answer.decoded(DnsResponse)
    print_as(output, answer.body, lambda: Group(*map(_view, found.names)))


@app.command()
@with_fleet_options
def export(
    api: ReadClient,
    to: Annotated[ExportFormat, typer.Argument(help="Format.")],
    zone: Annotated[str, typer.Option(help="Zone to export; octodns has one file for each zone.")] = "",
    namespace: Annotated[str, typer.Option(help="Namespace of the DNSEndpoint.")] = "default",
) -> None:
    """Print the records of the policy's names as YAML.

    A name without a live region has the records of all its permitted regions, and a line on stderr states it: without
    any, readers of the output would remove it. If it has none, nothing is printed and the exit code is 1.
    """
    names = [name for name in _names(api) if zone in ("", name.zone)]
    zones = {name.zone for name in names}
    if to is ExportFormat.OCTODNS and len(zones) != 1:
        raise UsageFault(f"name one zone with --zone: {', '.join(sorted(zones)) or 'the policy has none'}")
    empty = [name.name for name in names if not (name.record_sets or name.permitted_sets)]
    if empty:
        print_error("dns export", f"no region is permitted for {', '.join(empty)}; nothing is exported")
        raise typer.Exit(EXIT_FAILED)
    for name in names:
        if not name.record_sets:
            print_error("dns export", f"{name.name}: no permitted region is live; the records are those of all")
    names = [msgspec.structs.replace(name, record_sets=name.record_sets or name.permitted_sets) for name in names]
    content = dns_endpoint(names, namespace) if to is ExportFormat.EXTERNAL_DNS else octodns_zone(names, *zones)
    print(msgspec.yaml.encode(content).decode(), end="")


@app.command()
@with_fleet_options
def update(
    api: ChangeClient,
    server: Annotated[str, typer.Argument(help="host:port of the primary DNS server of the zones.")],
    key_file: Annotated[Path, typer.Option(help="TSIG key that the server accepts, as `tsig-keygen` writes it.")],
    every_s: Annotated[float, typer.Option("--every", min=1.0, help="Time (s) between two looks at the fleet.")] = 1.0,
    min_interval_s: Annotated[
        float, typer.Option("--min-interval", min=0.0, help="Minimum time (s) between two changes.")
    ] = 5.0,
    once: Annotated[
        bool, typer.Option("--once", help="Update once, and exit with 1 if a name is not up to date.")
    ] = False,
) -> None:
    """Keep the records of the policy's names up to date in a DNS server, by signed updates (RFC 2136).

    Only changes are sent. A name without a live region keeps its records, and a line on stderr states it. While no
    control plane answers, nothing changes. --dry-run reads the records of the server, prints the changes, and ends.
    """
    # Imported late: other commands need no dnspython.
    from control_plane.dns.dynamic_update import DynamicUpdates, read_key
    from control_plane.dns.publisher import RecordPublisher

    try:
        host, port = host_port(server)
    except ValueError as error:
        raise UsageFault(f"{server}: {error}") from None
    target = DynamicUpdates(host, port, read_key(key_file))
    publisher = RecordPublisher(
        target, min_interval_s, lambda line: print_error("dns update", line), is_dry_run=api.is_dry_run
    )
    once = once or api.is_dry_run
    reported = ""
    while True:
        is_current, problem = False, ""
        try:
            is_current = publisher.step(_names(api))
        except ApiError as error:
            if once:
                raise
            problem = str(error)
            if problem != reported:
                print_error("dns update", f"no change while no control plane answers: {problem}")
        reported = problem
        if once and is_current:
            return
        if once:
            raise typer.Exit(EXIT_FAILED)
        time.sleep(every_s)


def _names(api: ApiClient) -> list[NameRecords]:
    response = api.request("GET", "/v1/dns").decoded(DnsResponse)
    return list(response.names)


def _view(name: NameRecords) -> RenderableType:
    # A title of the table would be broken at the table's width.
    table = table_of("region", "share")
    for region, share in sorted(name.shares.items(), key=lambda item: -item[1]):
        table.add_row(region, f"{share:.0%}")
    lines = [
        f"not {region.what}: {region.reason.value}{f', {region.detail}' if region.detail else ''}"
        for region in name.rejected
    ]
    lines.append(f"residency permits {', '.join(name.permitted) or 'no region'}")
    return Group(f"{name.name}, {name.ttl_s} s", table, Text("\n".join(lines), "dim"))
