"""Checks the files that a control plane reads at its start: `penstock serve --check-config`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from adapters.access.api_keys import read_api_keys
from adapters.configuration.config_check import problems_of
from adapters.files.identity_files import IdentityFiles
from adapters.files.plain_file import UnusableFile
from adapters.geoip_lookup import GeoIpLookup
from adapters.tls_contexts import ClientTls
from control_plane.auth.admin_token import load_admin_token
from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from control_plane.policy.source.webhook_secret import load_webhook_secret
from control_plane.serve import load_client_secret, tls_of_api, tls_to_etcd, tls_to_peers
from control_plane.settings import ControlPlaneSettings
from penstock.wire.identity import ProcessRole


class BadBundle(Exception):
    """The policy bundle is refused; the message has one line for each error."""


def config_problems(settings: ControlPlaneSettings) -> list[str]:
    """Return the problems of the files that the settings name, one a line. A policy repository is not read."""
    checks: list[Callable[[], object]] = [
        lambda: IdentityFiles(settings.identity_dir, ProcessRole.CONTROL_PLANE, settings.name),
        lambda: load_admin_token(settings.admin_token_file),
        lambda: tls_of_api(settings),
        lambda: tls_to_peers(settings),
        lambda: _check_etcd_files(settings),
        lambda: GeoIpLookup(settings.geoip_file),
    ]
    files: list[tuple[Path | None, Callable[[Path], object]]] = [
        (settings.api_keys_file, read_api_keys),
        (settings.oidc_client_secret_file, load_client_secret),
        (settings.policy_webhook_secret_file, load_webhook_secret),
        (settings.policy_dir, _check_bundle),
    ]
    checks += [partial(check, path) for path, check in files if path is not None]
    return problems_of(checks, UnusableFile, BadBundle)


def _check_etcd_files(settings: ControlPlaneSettings) -> None:
    files = tls_to_etcd(settings)
    if files is not None:
        ClientTls(files.ca_path, files.cert_path, files.key_path)


def _check_bundle(folder: Path) -> None:
    try:
        compile_bundle(read_folder(folder))
    except PolicyRefused as refused:
        raise BadBundle("\n".join(f"{folder}/{error}" for error in refused.errors)) from None
