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
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from control_plane.policy.repository_url import why_unusable

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


_OF_REPOSITORY = {"policy_ref", "policy_path", "policy_poll_s", "policy_webhook_secret_file"}


class ControlPlaneSettings(BaseSettings):
    """Everything that differs between one control plane and another. What policy says is not here."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?$")]
    """This control plane's seat: unique in the fleet, and the same after a restart."""
    listen: Annotated[HostPort, NoDecode, BeforeValidator(_host_port)]
    """host:port of the HTTP API; port 0 chooses a free one and logs it."""
    advertise_url: Annotated[str, AfterValidator(_http_url)] | None = None
    """Where agents and operators reach this one, as http://host:port; None takes `listen`."""
    etcd_endpoints: Annotated[
        tuple[Annotated[str, AfterValidator(_endpoint)], ...], NoDecode, BeforeValidator(_listed), Field(min_length=1)
    ]
    """host:port of each etcd member; comma-separated."""
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

    geoip_file: Path | None = None
    """MaxMind City or Country database, to advise and explain by clients' addresses; opened anew when it changes. None
    leaves every address nowhere."""

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
    return f"{variable}: {message}"
