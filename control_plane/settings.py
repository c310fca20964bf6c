"""Settings of a control plane: environment variables `PENSTOCK_<FIELD>` or command-line flags, validated at startup."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    DirectoryPath,
    Field,
    IPvAnyNetwork,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from adapters.store.keys import DEFAULT_PREFIX, key_prefix
from adapters.store.members import named
from control_plane.auth.callers import Role
from control_plane.policy.source.repository_url import url_error

PREFIX = "PENSTOCK_"

_WILDCARD_HOSTS = {"0.0.0.0", "::"}


class BadSettings(Exception):
    """Invalid settings: one line for each variable, with the error."""


class HostPort(NamedTuple):
    """A host and port to listen on or to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _host_port(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    host, _, port = value.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{value!r} is not of the form host:port, such as 127.0.0.1:8080")
    return HostPort(host.strip("[]"), int(port))


def _listed(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _endpoint(value: str) -> str:
    return str(_host_port(value))


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"{value!r} is not of the form http://host:port")
    return value.rstrip("/")


def _repository(value: SecretStr) -> SecretStr:
    wrong = url_error(value.get_secret_value())
    if wrong is not None:
        raise ValueError(f"the repository's address {wrong}")
    return value


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not value.isprintable():
        raise ValueError(f"{value!r} is not a path inside the repository, such as policies/planet")
    return str(path) if path.parts else ""


def _mapped(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in _listed(value)]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError(f"{value!r} is not of the form group=role,group=role")
    return {name.strip(): role.strip() for name, _, role in pairs}


def _jwks_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")):
        raise ValueError(f"{value!r} must be an https URL, because its response determines who is admin")
    return value


_REPOSITORY_SETTINGS = {"policy_ref", "policy_path", "policy_poll_s", "policy_webhook_secret_file"}


class ControlPlaneSettings(BaseSettings):
    """Settings of one control plane. Everything that applies to the whole fleet is in the policy."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    name: Annotated[str, AfterValidator(named)]
    """Name of this control plane. It must be unique in the fleet and stay the same after a restart."""
    listen: Annotated[HostPort, NoDecode, BeforeValidator(_host_port)]
    """Address of the HTTP API, as host:port. Port 0 selects a free port, which is logged."""
    advertise_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """URL at which agents and operators reach this control plane: http://host:port, or https if `tls_certificate_file`
    is set. Default: derived from `listen`."""
    tls_certificate_file: Path | None = None
    """PEM file with the certificate chain of the HTTP API; reloaded when it changes. Default: no TLS."""
    tls_key_file: Path | None = None
    """PEM file with the private key of `tls_certificate_file`."""
    control_plane_ca_file: Path | None = None
    """PEM file of the authorities that sign the other control planes' certificates. Default: the authorities that the
    system trusts."""
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_listed)] = ()
    """Addresses or networks of the proxies whose X-Forwarded-For header is used, comma-separated. Failed logins are
    limited per client address: without this setting all clients behind a proxy share one limit."""
    etcd_endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_endpoint)], ...], NoDecode, BeforeValidator(_listed), Field(min_length=1)
    ]
    """Addresses of the etcd members, as host:port, comma-separated."""
    etcd_prefix: Annotated[str, AfterValidator(key_prefix)] = DEFAULT_PREFIX
    """What every key of the fleet starts with in etcd. Fleets that share an etcd have different prefixes."""
    etcd_ca_file: Path | None = None
    """PEM file of the authorities that sign etcd's certificates. Default: no TLS."""
    etcd_certificate_file: Path | None = None
    """PEM file with the client certificate for etcd, if etcd requires one."""
    etcd_key_file: Path | None = None
    """PEM file with the private key of `etcd_certificate_file`."""
    policy_dir: DirectoryPath | None = None
    """Folder of the policy bundle; polled for changes. Set either this or `policy_repository`."""
    policy_repository: Annotated[SecretStr, AfterValidator(_repository)] | None = None
    """Git repository of the policy bundle: a URL (https, ssh, git, file), user@host:path, or an absolute path. A user
    and password in it are never logged."""
    policy_ref: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\s~^:?*\[\\]+$")] = "main"
    """Branch or tag whose newest commit is the policy."""
    policy_path: Annotated[str, AfterValidator(_inside)] = ""
    """Folder of the bundle inside the repository. Default: its root."""
    policy_poll_s: Annotated[float, Field(ge=1.0, le=3600.0)] = 10.0
    """Interval (s, 1 to 3600) between two polls of the repository. A webhook triggers a poll at once."""
    policy_webhook_secret_file: Path | None = None
    """File with the secret that signs the repository's webhooks, one line. Default: webhooks are rejected."""
    identity_dir: Path
    """Directory with the certificate of this control plane (`tls.crt`, `tls.key`, `ca.crt`), as `penstock certs issue`
    writes it; reloaded when it changes."""
    admin_token_file: Path
    """File with the admin token, one line. Its holder has the role admin; use `api_keys_file` for individual
    callers."""
    api_keys_file: Path | None = None
    """YAML or JSON file of API keys: digest, name, role and regions of each; reloaded when it changes. Default: no API
    keys."""
    oidc_issuer: str | None = None
    """Issuer (`iss`) of the identity provider whose tokens are accepted. Requires `oidc_audience`, `oidc_jwks_url` and
    `oidc_roles`. Default: tokens are rejected."""
    oidc_audience: str | None = None
    """Audience (`aud`) that tokens must contain."""
    oidc_jwks_url: Annotated[str, AfterValidator(_jwks_url)] | None = None
    """URL of the identity provider's public keys (JWKS): https, or http on a loopback address."""
    oidc_roles: Annotated[dict[str, Role], NoDecode, BeforeValidator(_mapped)] = {}
    """Role for each value of `oidc_role_claim`, as group=role,group=role."""
    oidc_role_claim: Annotated[str, Field(min_length=1)] = "groups"
    """Claim that determines the role: a string or a list of strings."""
    oidc_regions_claim: Annotated[str, Field(min_length=1)] | None = None
    """Claim with the regions that a caller may change, or `*` for all; a token without the claim may change none.
    Default: callers may change every region."""
    oidc_name_claim: Annotated[str, Field(min_length=1)] = "sub"
    """Claim with the caller's name for the audit log."""
    geoip_file: Path | None = None
    """MaxMind City or Country database that locates client addresses for steering and explanations; reloaded when it
    changes. Default: addresses have no location."""

    @model_validator(mode="after")
    def _check_policy_source(self) -> ControlPlaneSettings:
        if self.policy_dir is None and self.policy_repository is None:
            raise ValueError(f"{PREFIX}POLICY_DIR: set either this or {PREFIX}POLICY_REPOSITORY")
        if self.policy_repository is None:
            given = self.model_fields_set & _REPOSITORY_SETTINGS
            if given:
                names = ", ".join(sorted(PREFIX + name.upper() for name in given))
                raise ValueError(f"{names}: applies only with {PREFIX}POLICY_REPOSITORY, not with {PREFIX}POLICY_DIR")
        elif self.policy_dir is not None:
            raise ValueError(f"{PREFIX}POLICY_DIR: cannot be combined with {PREFIX}POLICY_REPOSITORY")
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> ControlPlaneSettings:
        """Check settings that depend on each other."""
        for names in (
            ("tls_certificate_file", "tls_key_file"),
            ("etcd_certificate_file", "etcd_key_file"),
            ("oidc_issuer", "oidc_audience", "oidc_jwks_url", "oidc_roles"),
        ):
            missing = [name for name in names if not getattr(self, name)]
            if missing and len(missing) < len(names):
                given = next(name for name in names if name not in missing)
                raise ValueError(f"{PREFIX}{missing[0].upper()}: not set, but required by {PREFIX}{given.upper()}")
        if self.etcd_certificate_file is not None and self.etcd_ca_file is None:
            raise ValueError(f"{PREFIX}ETCD_CA_FILE: not set, but required by {PREFIX}ETCD_CERTIFICATE_FILE")
        return self

    @model_validator(mode="after")
    def _check_advertise_url(self) -> ControlPlaneSettings:
        if self.advertise_url is None and self.listen.host in _WILDCARD_HOSTS:
            raise ValueError(
                f"{PREFIX}ADVERTISE_URL: not set, but required because {self.listen} is a wildcard address"
            )
        return self


def load_settings(overrides: Mapping[str, Any] | None = None) -> ControlPlaneSettings:
    """Return the settings from the environment; `overrides`, by field name, take precedence.

    Raises:
        BadSettings: some settings are missing or invalid.
    """
    try:
        return ControlPlaneSettings(**(overrides or {}))
    except ValidationError as error:
        raise BadSettings("\n".join(_format_error(problem) for problem in error.errors())) from None


def _format_error(detail: Any) -> str:
    message: str = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return message
    variable = PREFIX + str(detail["loc"][0]).upper().removeprefix(PREFIX)
    if detail["type"] == "missing":
        return f"{variable}: not set"
    if detail["type"] == "path_not_directory":
        return f"{variable}: {detail['input']} is not a folder; create it with the policy bundle"
    return f"{variable}: {message}"
