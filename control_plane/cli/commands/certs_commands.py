"""`penstock certs`: a private certificate authority for the fleet, and the certificates of its processes.

Modules that handle certificates are imported by the commands that need them, so that `penstock --help` is fast.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from control_plane.cli.error_output import EXIT_FAILED, UsageFault, exit_on_error
from control_plane.cli.output import Output, OutputOption, print_json

SECONDS_PER_DAY = 86_400.0

app = typer.Typer(no_args_is_help=True, help="Issue and renew the certificates of the fleet.")
issue = typer.Typer(no_args_is_help=True, help="Issue the certificate of a process, into a directory of its own.")
app.add_typer(issue, name="issue")

AuthorityOption = Annotated[Path, typer.Option("--authority", help="Directory of the certificate authority.")]
DirectoryArgument = Annotated[Path, typer.Argument(help="Directory of the identity.", show_default=False)]
OutOption = Annotated[Path, typer.Option("--out", help="Directory to write.")]
HostOption = Annotated[
    list[str], typer.Option("--host", help="DNS name or IP address at which the process is reached; may be repeated.")
]
FleetOption = Annotated[
    str, typer.Option("--fleet", help="Name of the fleet, if the authority certifies several.", show_default=False)
]
DaysOption = Annotated[float, typer.Option(min=0.01, max=3650, help="Validity in days.")]
DEFAULT_AUTHORITY = Path("authority")


class CertificateStatus(msgspec.Struct, frozen=True):
    """One certificate, as `certs` commands print it."""

    directory: str
    id: str
    """SPIFFE ID."""
    serial: str
    """Serial number in hexadecimal, as listed in the file `revoked`."""
    expires_at: str
    """ISO 8601, in UTC."""
    days_left: float


@app.command()
def init(
    fleet: Annotated[str, typer.Argument(help="Name of the fleet.", show_default=False)],
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    days: DaysOption = 3650,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a certificate authority. Keep its directory offline: its key can certify any process of the fleet."""
    from adapters.files.authority_files import create_authority

    with _exit_on_bad_identity("certs init"):
        create_authority(authority, fleet, days * SECONDS_PER_DAY)
    if output is Output.JSON:
        print_json({"fleet": fleet, "authority": str(authority)})
    else:
        typer.echo(f"created the authority of fleet {fleet} in {authority}; keep {authority}/ca.key secret")


@issue.command("agent")
def issue_agent(
    region: Annotated[str, typer.Argument(help="Region of the agent.", show_default=False)],
    name: Annotated[str, typer.Argument(help="Name of the agent.", show_default=False)],
    out: OutOption,
    host: HostOption,
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    fleet: FleetOption = "",
    days: DaysOption = 90,
    output: OutputOption = Output.TABLE,
) -> None:
    """Issue the certificate of an agent."""
    _issue(_Issuing(out, authority, fleet, days, output), "agent", name, host, region)


def _add_issue(role: str, help_text: str) -> None:
    @issue.command(role, help=help_text)
    def issue_for_host(
        name: Annotated[str, typer.Argument(help="Name of the process.", show_default=False)],
        out: OutOption,
        host: HostOption,
        authority: AuthorityOption = DEFAULT_AUTHORITY,
        fleet: FleetOption = "",
        days: DaysOption = 90,
        output: OutputOption = Output.TABLE,
    ) -> None:
        _issue(_Issuing(out, authority, fleet, days, output), role, name, host)


_add_issue("control-plane", "Issue the certificate of a control plane.")
_add_issue(
    "server",
    "Issue the certificate of an etcd member or a Redis: for TLS only, without rights at agents and control planes.",
)


@issue.command("monitor")
def issue_monitor(
    name: Annotated[str, typer.Argument(help="Name of the client, such as prometheus.", show_default=False)],
    out: OutOption,
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    fleet: FleetOption = "",
    days: DaysOption = 90,
    output: OutputOption = Output.TABLE,
) -> None:
    """Issue a client certificate that permits only reading metrics."""
    _issue(_Issuing(out, authority, fleet, days, output), "monitor", name, [])


@app.command()
def rotate(
    directory: DirectoryArgument,
    authority: AuthorityOption = DEFAULT_AUTHORITY,
    fleet: Annotated[str, typer.Option("--fleet", help="New name of the fleet. Default: as it is.")] = "",
    days: DaysOption = 90,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replace the key and the certificate of a process. A running process reloads them without a restart."""
    from adapters.files.authority_files import load_authority, renew_identity, trusts

    with _exit_on_bad_identity("certs rotate"):
        issuer = load_authority(authority)
        was_trusted = trusts(directory, issuer)
        renew_identity(issuer, directory, days * SECONDS_PER_DAY, fleet)
        _print(_status(directory), output)
    if not was_trusted:
        typer.echo(
            f"penstock certs rotate: {directory} did not trust this authority; all other processes have to trust it too"
            " before this one uses the certificate (docs/certificates.md#another-authority)",
            err=True,
        )


@app.command()
def check(
    directories: Annotated[list[Path], typer.Argument(help="Directories of identities.", show_default=False)],
    days: Annotated[float, typer.Option(min=0.0, help="Fail if a certificate expires within this many days.")] = 14,
    output: OutputOption = Output.TABLE,
) -> None:
    """Verify the files of identities, and that no certificate expires soon."""
    with _exit_on_bad_identity("certs check"):
        found = [_status(directory) for directory in directories]
    for status in found:
        _print(status, output)
    if any(status.days_left < days for status in found):
        typer.echo(
            f"penstock certs check: a certificate expires within {days:g} days; renew it with `certs rotate`", err=True
        )
        raise typer.Exit(EXIT_FAILED)


class _Issuing(NamedTuple):
    """The options that all `certs issue` commands have."""

    out: Path
    authority: Path
    fleet: str
    days: float
    output: Output


def _issue(options: _Issuing, role: str, name: str, hosts: list[str], region: str = "") -> None:
    from adapters.files.authority_files import issue_identity, load_authority
    from penstock.wire.identity import ProcessRole, SpiffeId

    with _exit_on_bad_identity(f"certs issue {role}"):
        authority = load_authority(options.authority)
        id_ = SpiffeId(options.fleet or authority.fleet, ProcessRole(role), name, region)
        issue_identity(authority, id_, hosts, options.out, options.days * SECONDS_PER_DAY)
        _print(_status(options.out), options.output)


def _status(directory: Path) -> CertificateStatus:
    from adapters.files.identity_files import load_identity

    now = time.time()
    peer = load_identity(directory, now).peer
    expires = datetime.fromtimestamp(peer.not_after, UTC).isoformat()
    days_left = round((peer.not_after - now) / SECONDS_PER_DAY, 2)
    return CertificateStatus(str(directory), str(peer.id), peer.serial, expires, days_left)


def _print(status: CertificateStatus, output: Output) -> None:
    if output is Output.JSON:
        print_json(status)
    else:
        typer.echo(f"{status.directory}: {status.id}, expires {status.expires_at} (in {status.days_left:g} days)")


@contextmanager
def _exit_on_bad_identity(command: str) -> Iterator[None]:
    from penstock.wire.identity import BadIdentity

    with exit_on_error(command):
        try:
            yield
        except BadIdentity as error:
            raise UsageFault(str(error)) from None
