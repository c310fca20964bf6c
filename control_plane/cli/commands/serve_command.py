"""`penstock serve`: run a control plane."""

from __future__ import annotations

from typing import Annotated

import typer

from adapters.configuration.config_options import CheckConfigOption, ConfigOption, PrintConfigOption, VersionOption
from adapters.garbage_collection import uncollected
from control_plane.cli.error_output import UsageFault, exit_on_error


def serve(
    name: Annotated[str | None, typer.Option(help="Unique name of this control plane.")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port of the HTTP API; port 0 selects a free port.")] = None,
    advertise_url: Annotated[str | None, typer.Option(help="URL at which others reach it: http://host:port.")] = None,
    etcd_endpoints: Annotated[str | None, typer.Option(help="host:port of each etcd member, comma-separated.")] = None,
    policy_dir: Annotated[str | None, typer.Option(help="Folder of the policy bundle.")] = None,
    policy_repository: Annotated[
        str | None,
        typer.Option(help="Git repository of the bundle instead: a URL without secrets, or an absolute path."),
    ] = None,
    policy_ref: Annotated[str | None, typer.Option(help="Branch or tag of the repository.")] = None,
    policy_path: Annotated[str | None, typer.Option(help="Folder of the bundle inside the repository.")] = None,
    identity_dir: Annotated[str | None, typer.Option(help="Directory with this control plane's certificate.")] = None,
    admin_token_file: Annotated[str | None, typer.Option(help="File with the admin token.")] = None,
    api_keys_file: Annotated[str | None, typer.Option(help="File of API keys by digest, with roles.")] = None,
    geoip_file: Annotated[str | None, typer.Option(help="MaxMind database, to locate clients by address.")] = None,
    config: ConfigOption = None,
    check_config: CheckConfigOption = False,
    print_config: PrintConfigOption = False,
    version: VersionOption = False,
) -> None:
    """Run a control plane.

    Each flag has an environment variable, such as PENSTOCK_NAME for --name, and a name in the configuration file, such
    as `name`. TLS, the identity provider and other settings have no flags: see docs/running.md.
    """
    # Imported late, because the web framework and the etcd client load slowly.
    with uncollected():
        from adapters.configuration.config_check import show_config, version_line
        from adapters.configuration.settings_loader import BadSettings, load_with_origins
        from adapters.files.plain_file import UnusableFile
        from adapters.logs import configure_logs
        from control_plane.config_check import config_problems
        from control_plane.serve import CannotListen
        from control_plane.serve import serve as run
        from control_plane.settings import PREFIX, ControlPlaneSettings

    flags = {
        "name": name,
        "listen": listen,
        "advertise_url": advertise_url,
        "etcd_endpoints": etcd_endpoints,
        "policy_dir": policy_dir,
        "policy_repository": policy_repository,
        "policy_ref": policy_ref,
        "policy_path": policy_path,
        "identity_dir": identity_dir,
        "admin_token_file": admin_token_file,
        "api_keys_file": api_keys_file,
        "geoip_file": geoip_file,
    }
    if version:
        print(version_line("penstock"))
        return
    configure_logs()
    given = {field: value for field, value in flags.items() if value is not None}
    with exit_on_error("serve"):
        try:
            loaded = load_with_origins(ControlPlaneSettings, PREFIX, config=config, flags=given)
            if not show_config(loaded, config_problems, check=check_config, listing=print_config):
                run(loaded.settings)
        except (BadSettings, UnusableFile, CannotListen) as error:
            raise UsageFault(str(error)) from None
