"""`penstock`: run a control plane, look at the fleet, check policy. Exit code 2 says that the command was at fault."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from control_plane.admin_token import AdminToken, BadAdminToken, load_admin_token
from control_plane.client.fleet_key import BadFleetKey
from control_plane.logs import configure_logs
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.errors import PolicyRefused
from control_plane.policy.folder import read_folder
from control_plane.policy.schema import schema_text
from control_plane.settings import BadSettings, load_settings
from control_plane.status import Status
from control_plane.status_client import NoStatus, TokenRefused, fetch_status
from control_plane.status_view import status_view

WATCH_S = 1.0
"""Time (s) between two looks of `penstock status --watch`."""

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, help=__doc__)
policy_app = typer.Typer(no_args_is_help=True, help="Check policy bundles.")
app.add_typer(policy_app, name="policy")


class Output(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"


@app.command()
def serve(
    name: Annotated[str | None, typer.Option(help="Unique name of this control plane.")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port of the HTTP API; port 0 chooses a free one.")] = None,
    advertise_url: Annotated[str | None, typer.Option(help="Where others reach it, as http://host:port.")] = None,
    etcd_endpoints: Annotated[str | None, typer.Option(help="host:port of each etcd member, comma-separated.")] = None,
    policy_dir: Annotated[str | None, typer.Option(help="Folder of the policy bundle.")] = None,
    fleet_key_file: Annotated[str | None, typer.Option(help="The fleet's shared secret.")] = None,
    admin_token_file: Annotated[str | None, typer.Option(help="The operators' token.")] = None,
) -> None:
    """Run a control plane. Every flag has an environment variable: PENSTOCK_NAME for --name, and so on."""
    # Here, so that the other commands do not wait for a web framework and an etcd client to load.
    from control_plane.serve import CannotListen
    from control_plane.serve import serve as run

    flags = {
        "name": name,
        "listen": listen,
        "advertise_url": advertise_url,
        "etcd_endpoints": etcd_endpoints,
        "policy_dir": policy_dir,
        "fleet_key_file": fleet_key_file,
        "admin_token_file": admin_token_file,
    }
    configure_logs()
    try:
        run(load_settings({field: value for field, value in flags.items() if value is not None}))
    except (BadSettings, BadFleetKey, BadAdminToken, CannotListen) as error:
        _at_fault("serve", str(error))


@app.command()
def status(
    url: Annotated[str, typer.Option(envvar="PENSTOCK_URL", help="Base URLs of control planes, comma-separated.")],
    token_file: Annotated[Path, typer.Option(envvar="PENSTOCK_ADMIN_TOKEN_FILE", help="The operators' token.")],
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every second until Ctrl-C.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = Output.TABLE,
) -> None:
    """Show regions, their state and load, and who serves whom, as the leader sees it."""
    urls = [one.strip() for one in url.split(",") if one.strip()]
    try:
        token = load_admin_token(token_file)
        if watch:
            _watch(urls, token, output)
        else:
            _print(fetch_status(urls, token), output)
    except (BadAdminToken, TokenRefused) as error:
        _at_fault("status", str(error))
    except NoStatus as error:
        _err(f"no control plane answers: {error}")
        raise typer.Exit(1) from None


@policy_app.command()
def lint(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="Folder of a policy bundle.")],
) -> None:
    """Compile a bundle; print every error with its file and line, and exit with 1 if there is any."""
    try:
        policy = compile_bundle(read_folder(directory))
    except PolicyRefused as refused:
        for error in refused.errors:
            print(error)
        print(f"{directory}: refused, {len(refused.errors)} error(s)", file=sys.stderr)
        raise typer.Exit(1) from None
    counts = f"{len(policy.regions)} regions, {len(policy.models)} models, {len(policy.tenants)} tenants"
    print(f"{directory}: good, {counts}, {len(policy.residency)} residency rules, digest {policy.digest()[:12]}")


@policy_app.command()
def schema() -> None:
    """Print the JSON Schema of policy files, for editors."""
    print(schema_text(), end="")


def main() -> None:
    """The `penstock` command."""
    app(prog_name="penstock")


def _watch(urls: list[str], token: AdminToken, output: Output) -> None:
    """Look again and again, also while nobody answers: that is when people watch."""
    try:
        with Live(console=Console(), auto_refresh=False) if output is Output.TABLE else nullcontext() as live:
            while True:
                try:
                    status = fetch_status(urls, token)
                except TokenRefused:
                    raise
                except NoStatus as error:
                    _err(f"no control plane answers: {error}")
                else:
                    if live is None:
                        _print(status, output)
                    else:
                        live.update(status_view(status), refresh=True)
                time.sleep(WATCH_S)
    except KeyboardInterrupt:
        return


def _print(status: Status, output: Output) -> None:
    if output is Output.JSON:
        print(msgspec.json.encode(status).decode(), flush=True)
    else:
        Console().print(status_view(status))


def _err(message: str) -> None:
    print(f"penstock status: {message}", file=sys.stderr)


def _at_fault(command: str, message: str) -> NoReturn:
    for line in message.splitlines():
        print(f"penstock {command}: {line}", file=sys.stderr)
    raise typer.Exit(2)
