"""Settings of a control plane: a YAML file, `PENSTOCK_<FIELD>` in the environment, or flags; validated at startup."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    SecretStr,
    model_validator,
)

from adapters.access.callers import Role
from adapters.configuration.setting_values import host_port, listed
from adapters.configuration.settings_loader import load_with_origins
from adapters.loopback import is_loopback, is_protected
from adapters.store.keys import DEFAULT_PREFIX, key_prefix
from adapters.store.members import named
from control_plane.policy.source.repository_url import url_error
from penstock.leadership.leadership_states import MIN_LEASE_TTL_S
from penstock.policy.fields import STORE_URL

PREFIX = "PENSTOCK_"

REDIRECT_PATH = "/ui/signed-in"
"""Path to which the identity provider redirects browsers after the sign-in."""

_WILDCARD_HOSTS = {"0.0.0.0", "::"}


DROP_AUDIT = "drop"
"""Value of `audit_archive` with which audit entries are removed without an export."""


def _audit_archive(value: str) -> str:
    if value != DROP_AUDIT and re.fullmatch(STORE_URL, value) is None:
        raise ValueError(f"{value!r}: write file:///folder, s3://bucket/prefix, gs://, az://, or drop")
    return value


class HostPort(NamedTuple):
    """A host and port to listen on or to connect to."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def _host_port(value: Any) -> Any:
    return value if isinstance(value, HostPort) else HostPort(*host_port(str(value)))


def _folder(value: Path) -> Path:
    if not value.is_dir():
        raise ValueError(f"{value} is not a folder; create it with the policy bundle")
    return value


def _endpoint(value: str) -> str:
    return str(_host_port(value))


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.username is not None:
        raise ValueError("the URL names a user; agents and operators have their own credentials")
    has_more = parts.path.strip("/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or has_more:
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
    pairs = [part.partition("=") for part in listed(value)]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError(f"{value!r} is not of the form group=role,group=role")
    return {name.strip(): role.strip() for name, _, role in pairs}


def _jwks_url(value: str) -> str:
    if not is_protected(value):
        raise ValueError(f"{value!r} must be an https URL, because its response determines who is admin")
    return value


def _redirect_url(value: str) -> str:
    if not is_protected(value) or urlsplit(value).path != REDIRECT_PATH or urlsplit(value).query:
        raise ValueError(f"{value!r} is not of the form https://host:port{REDIRECT_PATH}")
    return value


def _scopes(value: tuple[str, ...]) -> tuple[str, ...]:
    if "openid" not in value or not all(re.fullmatch(r"[!-~]+", scope) for scope in value):
        raise ValueError(f"{', '.join(value)!r} are not scopes with openid, such as openid,groups")
    return value


PlaintextLink = Literal["api", "etcd"]

_REPOSITORY_SETTINGS = {"policy_ref", "policy_path", "policy_poll_s", "policy_webhook_secret_file"}


class ControlPlaneSettings(BaseModel):
    """Settings of one control plane. Settings of the whole fleet are in the policy."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(named)]
    """Name of this control plane. It must be unique in the fleet and stay the same after a restart."""
    listen: Annotated[HostPort, BeforeValidator(_host_port)]
    """Address of the HTTP API, as host:port. Port 0 selects a free port, which is logged."""
    advertise_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """URL at which agents and operators reach this control plane: https://host:port; http is accepted on loopback
    addresses, or if `allow_plaintext` has `api`. Default: derived from `listen`."""
    allow_plaintext: Annotated[frozenset[PlaintextLink], BeforeValidator(listed)] = frozenset()
    """Connections that may be unencrypted, comma-separated: `api` (requests to the HTTP API, such as those of a proxy
    that terminates TLS), `etcd`. Set it only where the network encrypts all traffic, such as a service mesh or
    WireGuard. A warning is logged at the start."""
    tls_certificate_file: Path | None = None
    """PEM file with the certificate chain of the HTTP API; reloaded when it changes. Default: the certificate of this
    control plane, in `identity_dir`; on a loopback address no TLS."""
    tls_key_file: Path | None = None
    """PEM file with the private key of `tls_certificate_file`."""
    require_client_certificate: bool = False
    """Whether the API refuses TLS connections without a client certificate of the fleet's authority, in addition to
    credentials. The API then serves TLS on loopback addresses, too. Agents and control planes present their
    certificates; `penstock`, browsers, load balancers and Kubernetes probes need one from
    `penstock certs issue monitor`."""
    control_plane_ca_file: Path | None = None
    """PEM file of the authorities that sign the other control planes' certificates. Default: the system's trust store
    and the fleet's authority."""
    trusted_proxies: Annotated[tuple[IPvAnyNetwork, ...], BeforeValidator(listed)] = ()
    """Addresses or networks of the proxies whose X-Forwarded-For header is used, comma-separated. Failed logins are
    limited per client address: without this setting all clients behind a proxy share one limit."""
    etcd_endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_endpoint)], ...], BeforeValidator(listed), Field(min_length=1)
    ]
    """Addresses of the etcd members, as host:port, comma-separated."""
    etcd_prefix: Annotated[str, AfterValidator(key_prefix)] = DEFAULT_PREFIX
    """Prefix of all keys of the fleet in etcd. Fleets that share an etcd need different prefixes.
    Every signature covers the prefix: all processes of a fleet have the same."""
    etcd_ca_file: Path | None = None
    """PEM file of the authorities that sign etcd's certificates. Default: the fleet's authority, in `identity_dir`;
    etcd on a loopback address is then reached without TLS."""
    etcd_certificate_file: Path | None = None
    """PEM file with the client certificate for etcd. Default: the certificate of this control plane, in
    `identity_dir`."""
    etcd_key_file: Path | None = None
    """PEM file with the private key of `etcd_certificate_file`."""
    leader_lease_s: Annotated[int, Field(ge=MIN_LEASE_TTL_S, le=60)] = MIN_LEASE_TTL_S
    """Time to live (s, 2 to 60) of the leader's lease. If the leader fails, another control plane takes over once
    the lease has expired; a leader that cannot renew the lease for this time steps down. Raise the value where etcd or
    the machines stall for seconds. Control planes of a fleet may have different values: the leader's value applies."""
    policy_dir: Annotated[Path, AfterValidator(_folder)] | None = None
    """Folder of the policy bundle; polled for changes. Set either this or `policy_repository`."""
    policy_repository: Annotated[SecretStr, AfterValidator(_repository)] | None = None
    """Git repository of the policy bundle: a URL (https, ssh, git, file), user@host:path, or an absolute path. A user
    and password in the URL are never logged."""
    policy_ref: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\s~^:?*\[\\]+$")] = "main"
    """Branch or tag whose newest commit is the policy."""
    policy_path: Annotated[str, AfterValidator(_inside)] = ""
    """Folder of the bundle inside the repository. Default: the root of the repository."""
    policy_poll_s: Annotated[float, Field(ge=1.0, le=3600.0)] = 10.0
    """Interval (s, 1 to 3600) between two polls of the repository. A webhook triggers a poll at once."""
    policy_webhook_secret_file: Path | None = None
    """File with the secret that signs the repository's webhooks, one line; reloaded when it changes. Default: webhooks
    are rejected."""
    identity_dir: Path
    """Directory with the certificate of this control plane (`tls.crt`, `tls.key`, `ca.crt`), written by
    `penstock certs issue`; reloaded when it changes."""
    admin_token_file: Path
    """File with the admin token, one line; reloaded when it changes. The token grants the role admin; use
    `api_keys_file` for individual callers."""
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
    oidc_roles: Annotated[dict[str, Role], BeforeValidator(_mapped)] = {}
    """Role for each value of `oidc_role_claim`; in the environment as group=role,group=role."""
    oidc_role_claim: Annotated[str, Field(min_length=1)] = "groups"
    """Claim that determines the role: a string or a list of strings."""
    oidc_regions_claim: Annotated[str, Field(min_length=1)] | None = None
    """Claim with the regions that a caller may change, or `*` for all; a token without the claim may change none.
    Default: callers may change every region."""
    oidc_name_claim: Annotated[str, Field(min_length=1)] = "sub"
    """Claim with the caller's name for the audit log."""
    oidc_client_id: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """Client id of the page at `/ui` at the identity provider, for sign-in by authorization code with PKCE. ID tokens
    must contain `oidc_role_claim`. Requires the other OIDC settings. Default: people sign in with an API key or a
    token."""
    oidc_client_secret_file: Path | None = None
    """File with the client's secret, one line. Default: the page is a public client."""
    oidc_redirect_url: Annotated[str, AfterValidator(_redirect_url)] | None = None
    """URL of `/ui/signed-in` for browsers, as registered at the identity provider. Default: under `advertise_url`."""
    oidc_scopes: Annotated[tuple[str, ...], BeforeValidator(listed), AfterValidator(_scopes)] = ("openid",)
    """Scopes of the sign-in, comma-separated, including `openid`; add the scope that provides `oidc_role_claim`, if the
    provider requires one."""
    audit_retention_days: Annotated[int, Field(ge=1, le=36_500)] | None = None
    """Days after which audit entries are removed from etcd, 100 at a time and oldest first. Requires `audit_archive`.
    Default: they are never removed."""
    audit_archive: Annotated[str, AfterValidator(_audit_archive)] | None = None
    """Where audit entries are exported before they are removed: the URL of a folder (`file:///folder`) or bucket
    (`s3://bucket/prefix`, `gs://`, `az://`), of this fleet alone; or `drop`, which removes them without an export. All
    control planes of a fleet need the same archive."""
    geoip_file: Path | None = None
    """MaxMind City or Country database that locates client addresses for steering and explanations; reloaded when it
    changes. Default: addresses have no location."""

    @model_validator(mode="after")
    def _check_policy_source(self) -> ControlPlaneSettings:
        if self.policy_dir is None and self.policy_repository is None:
            raise ValueError("{policy_dir}: set either this or {policy_repository}")
        if self.policy_repository is None:
            defaults = type(self).model_fields
            given = sorted(name for name in _REPOSITORY_SETTINGS if getattr(self, name) != defaults[name].default)
            if given:
                further = "".join(f", {{{name}}}" for name in given[1:])
                raise ValueError(f"{{{given[0]}}}{further}: applies only with {{policy_repository}}")
        elif self.policy_dir is not None:
            raise ValueError("{policy_dir}: cannot be combined with {policy_repository}; remove one of them")
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> ControlPlaneSettings:
        """Check settings that depend on each other."""
        for names in (
            ("tls_certificate_file", "tls_key_file"),
            ("etcd_certificate_file", "etcd_key_file"),
            ("oidc_issuer", "oidc_audience", "oidc_jwks_url", "oidc_roles"),
            ("audit_retention_days", "audit_archive"),
        ):
            missing = [name for name in names if not getattr(self, name)]
            if missing and len(missing) < len(names):
                given = next(name for name in names if name not in missing)
                raise ValueError(f"{{{missing[0]}}}: not set, but required by {{{given}}}")
        for given, needed in (
            ("oidc_client_id", "oidc_issuer"),
            ("oidc_client_secret_file", "oidc_client_id"),
            ("oidc_redirect_url", "oidc_client_id"),
        ):
            if getattr(self, given) is not None and getattr(self, needed) is None:
                raise ValueError(f"{{{needed}}}: not set, but required by {{{given}}}")
        if self.oidc_client_id is not None and not is_protected(self.oidc_issuer or ""):
            raise ValueError(f"{{oidc_issuer}}: {self.oidc_issuer} must be an https URL, as {{oidc_client_id}} is set")
        return self

    @model_validator(mode="after")
    def _check_advertise_url(self) -> ControlPlaneSettings:
        if self.advertise_url is None:
            if self.listen.host in _WILDCARD_HOSTS:
                reason = f"required because {self.listen} is a wildcard address"
                raise ValueError(f"{{advertise_url}}: not set, but {reason}")
            return self
        parts = urlsplit(self.advertise_url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or "") and "api" not in self.allow_plaintext:
            remedy = "set it to an https URL, or add api to {allow_plaintext}"
            raise ValueError(f"{{advertise_url}}: {self.advertise_url} is not encrypted; {remedy}")
        return self


def load_settings(flags: Mapping[str, Any] | None = None, config: Path | None = None) -> ControlPlaneSettings:
    """Return the settings. Flags, by field name, override the environment, which overrides the configuration file.

    Raises:
        BadSettings: some settings are missing or invalid.
    """
    return load_with_origins(ControlPlaneSettings, PREFIX, config=config, flags=flags).settings
