"""What a control plane is told at its start: environment variables `PENSTOCK_<FIELD>` or flags, checked first."""

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

from adapters.store.members import named
from control_plane.auth.callers import Role
from control_plane.policy.source.repository_url import why_unusable

PREFIX = "PENSTOCK_"

_EVERY_ADDRESS = {"0.0.0.0", "::"}


class BadSettings(Exception):
    """Settings that cannot be used; one line for each, with the variable and what is wrong with it."""


class HostPort(NamedTuple):
    """An address to listen on or to reach."""

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
    wrong = why_unusable(value.get_secret_value())
    if wrong is not None:
        raise ValueError(f"the repository's address {wrong}")
    return value


def _inside(value: str) -> str:
    path = PurePosixPath(value)
    if path.is_absolute() or ".." in path.parts or not value.isprintable():
        raise ValueError(f"{value!r} is no path inside the repository, such as policies/planet")
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
        raise ValueError(f"{value!r} is no https URL: whoever can change what it answers is admin here")
    return value


_OF_REPOSITORY = {"policy_ref", "policy_path", "policy_poll_s", "policy_webhook_secret_file"}


class ControlPlaneSettings(BaseSettings):
    """Everything that differs between one control plane and another. What policy says is not here."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    name: Annotated[str, AfterValidator(named)]
    """This control plane's seat: unique in the fleet, and the same after a restart."""
    listen: Annotated[HostPort, NoDecode, BeforeValidator(_host_port)]
    """host:port of the HTTP API; port 0 chooses a free one and logs it."""
    advertise_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """Where agents and operators reach this one, as http://host:port, or https where `tls_certificate_file` is set;
    None takes `listen`."""
    tls_certificate_file: Path | None = None
    """PEM certificate (chain) of the HTTP API; read again when it changes. None serves without TLS."""
    tls_key_file: Path | None = None
    """PEM of its private key."""
    control_plane_ca_file: Path | None = None
    """PEM of the authorities that sign the other control planes' certificates; None: those that the system trusts."""
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], NoDecode, BeforeValidator(_listed)] = ()
    """Addresses or networks of proxies whose X-Forwarded-For says who the client is; comma-separated. Failed logins are
    limited by client address: without this, those behind one proxy are taken for one."""
    etcd_endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_endpoint)], ...], NoDecode, BeforeValidator(_listed), Field(min_length=1)
    ]
    """host:port of each etcd member; comma-separated."""
    etcd_ca_file: Path | None = None
    """PEM of the authorities that sign etcd's certificates; None connects without TLS."""
    etcd_certificate_file: Path | None = None
    """PEM of our certificate, where etcd asks for one."""
    etcd_key_file: Path | None = None
    """PEM of its private key."""
    policy_dir: DirectoryPath | None = None
    """Folder of the policy bundle; polled for changes. Either this or `policy_repository`."""
    policy_repository: Annotated[SecretStr, AfterValidator(_repository)] | None = None
    """Git repository of the policy bundle: a URL (https, ssh, git, file), user@host:path, or an absolute path. User and
    password in it are shown nowhere."""
    policy_ref: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\s~^:?*\[\\]+$")] = "main"
    """Branch or tag whose newest commit is the policy."""
    policy_path: Annotated[str, AfterValidator(_inside)] = ""
    """Folder of the bundle inside the repository; empty for its root."""
    policy_poll_s: Annotated[float, Field(ge=1.0, le=3600.0)] = 10.0
    """Time (s) between two looks at the repository; a webhook makes them sooner."""
    policy_webhook_secret_file: Path | None = None
    """What the repository's host signs webhooks with, one line; None takes no webhooks."""
    fleet_key_file: Path
    """The fleet's shared secret, one key a line, newest first."""
    admin_token_file: Path
    """The token to start with, one line: whoever has it is admin. Callers of their own are in `api_keys_file`."""
    api_keys_file: Path | None = None
    """API keys by digest, with name, role and regions, as YAML or JSON; read again when it changes. None: there are
    none."""
    oidc_issuer: str | None = None
    """The `iss` of an identity provider whose tokens are let in; None: of none. Needs audience, JWKS URL and roles."""
    oidc_audience: str | None = None
    """What the `aud` of its tokens must hold."""
    oidc_jwks_url: Annotated[str, AfterValidator(_jwks_url)] | None = None
    """Where its public keys are."""
    oidc_roles: Annotated[dict[str, Role], NoDecode, BeforeValidator(_mapped)] = {}
    """Role by value of `oidc_role_claim`, as group=role,group=role."""
    oidc_role_claim: Annotated[str, Field(min_length=1)] = "groups"
    """Claim of a token that gives roles: a string or a list of them."""
    oidc_regions_claim: Annotated[str, Field(min_length=1)] | None = None
    """Claim with the regions that a caller may change, or `*`; a token without it may change none. None: everybody may
    change every region that their role lets them."""
    oidc_name_claim: Annotated[str, Field(min_length=1)] = "sub"
    """Claim that names the caller in the audit log."""
    geoip_file: Path | None = None
    """MaxMind City or Country database, to advise and explain by clients' addresses, read into memory; read again
    when it changes. None leaves every address nowhere."""

    @model_validator(mode="after")
    def _one_policy(self) -> ControlPlaneSettings:
        if self.policy_dir is None and self.policy_repository is None:
            raise ValueError(f"{PREFIX}POLICY_DIR: not set, and neither is {PREFIX}POLICY_REPOSITORY: set one of them")
        if self.policy_repository is None:
            given = self.model_fields_set & _OF_REPOSITORY
            if given:
                names = ", ".join(sorted(PREFIX + name.upper() for name in given))
                raise ValueError(f"{names}: of no use with {PREFIX}POLICY_DIR, only with {PREFIX}POLICY_REPOSITORY")
        elif self.policy_dir is not None:
            raise ValueError(f"{PREFIX}POLICY_DIR: set together with {PREFIX}POLICY_REPOSITORY: keep one of them")
        return self

    @model_validator(mode="after")
    def _whole(self) -> ControlPlaneSettings:
        """What goes together is set together."""
        for names in (
            ("tls_certificate_file", "tls_key_file"),
            ("etcd_certificate_file", "etcd_key_file"),
            ("oidc_issuer", "oidc_audience", "oidc_jwks_url", "oidc_roles"),
        ):
            missing = [name for name in names if not getattr(self, name)]
            if missing and len(missing) < len(names):
                given = next(name for name in names if name not in missing)
                raise ValueError(f"{PREFIX}{missing[0].upper()}: not set, and {PREFIX}{given.upper()} needs it")
        if self.etcd_certificate_file is not None and self.etcd_ca_file is None:
            raise ValueError(f"{PREFIX}ETCD_CA_FILE: not set, and {PREFIX}ETCD_CERTIFICATE_FILE needs it")
        return self

    @model_validator(mode="after")
    def _reachable(self) -> ControlPlaneSettings:
        if self.advertise_url is None and self.listen.host in _EVERY_ADDRESS:
            raise ValueError(f"{PREFIX}ADVERTISE_URL: not set, and nobody can reach {self.listen}: say where they can")
        return self


def load_settings(overrides: Mapping[str, Any] | None = None) -> ControlPlaneSettings:
    """Settings from the environment, with `overrides` by field name before it.

    Raises:
        BadSettings: some are missing or malformed.
    """
    try:
        return ControlPlaneSettings(**(overrides or {}))
    except ValidationError as error:
        raise BadSettings("\n".join(_line(problem) for problem in error.errors())) from None


def _line(detail: Any) -> str:
    message: str = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return message
    variable = PREFIX + str(detail["loc"][0]).upper().removeprefix(PREFIX)
    if detail["type"] == "missing":
        return f"{variable}: not set"
    if detail["type"] == "path_not_directory":
        return f"{variable}: {detail['input']} is no folder; make it, and put the policy bundle there"
    return f"{variable}: {message}"
