"""`penstock tenant revoke-key`, `revoked-keys`, `lift-key`: API keys by their digest."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from adapters.files.plain_file import read_plain_file
from adapters.files.secret_file import MAX_FILE_BYTES
from control_plane.cli.command_options import ChangeClient, ChangeOptions, ReadClient, ReasonOption, with_fleet_options
from control_plane.cli.error_output import UsageFault, exit_on_error
from control_plane.cli.output import Output, OutputOption, print_as
from control_plane.cli.views.tenant_view import revoked_keys_table
from control_plane.tenants.revoked_key_resource import RevokedKeyPage, RevokedKeyView

PATH = "/v1/revoked-keys"


@with_fleet_options
def revoke_key(
    fleet: ChangeOptions,
    reason: ReasonOption,
    key_file: Annotated[Path | None, typer.Option(help="File with the API key, one line.")] = None,
    digest: Annotated[str | None, typer.Option(help="SHA-256 of the key in hexadecimal, as in the policy.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke an API key: agents refuse it within a second and end its open requests, whatever policy is in force.

    Give --key-file or --digest. The key itself is not sent. The key of a tenant that was created with `tenant create`
    is revoked for good, as by `tenant key revoke`.
    """
    with exit_on_error("tenant revoke-key"):
        if (key_file is None) == (digest is None):
            raise UsageFault("give either --key-file or --digest")
        wanted = _digest_of(key_file) if key_file is not None else (digest or "").strip().lower()
        with fleet.connect() as api:
            body = {"key_digest": wanted, "reason": reason}
            revoked = api.request("POST", PATH, body=body, changes=True).decoded(RevokedKeyView)
        if revoked.tenant is None:
            typer.echo("penstock tenant revoke-key: no tenant has this key", err=True)
        print_as(output, revoked, lambda: revoked_keys_table([revoked]))


@with_fleet_options
def revoked_keys(api: ReadClient, output: OutputOption = Output.TABLE) -> None:
    """List the revoked API keys."""
    pages = api.pages(PATH, RevokedKeyPage)
    found = [key for page in pages for key in page.items]
    print_as(output, found, lambda: revoked_keys_table(found))


@with_fleet_options
def lift_key(
    api: ChangeClient,
    id: Annotated[str, typer.Argument(help="Identifier, as `tenant revoked-keys` prints it.", show_default=False)],
    reason: ReasonOption,
    output: OutputOption = Output.TABLE,
) -> None:
    """Lift a revocation: the key is valid again where the policy in force has it. Admins only."""
    response = api.request("DELETE", f"{PATH}/{quote(id, safe='')}", params={"reason": reason}, changes=True)
    lifted = response.decoded(RevokedKeyView)
    print_as(output, lifted, lambda: revoked_keys_table([lifted]))


def _digest_of(key_file: Path) -> str:
    try:
        key = read_plain_file(key_file, MAX_FILE_BYTES).content.strip()
    except OSError as error:
        raise UsageFault(f"{key_file}: cannot read the key: {error.strerror}") from None
    if not key or len(key.split()) > 1:
        raise UsageFault(f"{key_file}: not an API key; write it alone on one line")
    return sha256(key).hexdigest()
