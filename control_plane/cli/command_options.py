"""Options that several commands share: which control planes to connect to, and the reason of a change."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from adapters.files.tls_files import BadTlsFiles, load_authorities, load_pair, load_system_authorities
from control_plane.auth.admin_token import load_admin_token
from control_plane.cli.agent_client import AgentAccess
from control_plane.cli.api_client import TIMEOUT_S, ApiClient
from control_plane.cli.contexts import Context, Contexts, context_names, load_contexts, url_flaw
from control_plane.cli.error_output import UsageFault, exit_on_error

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Base URLs of the control planes, comma-separated (default: $PENSTOCK_URL).")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with your token, one line (default: $PENSTOCK_ADMIN_TOKEN_FILE)."),
]
CaFileOption = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        help="PEM file of the authorities that sign the control planes' certificates (default: $PENSTOCK_CA_FILE).",
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="Name of a context, as `penstock context list` prints it (default: $PENSTOCK_CONTEXT).",
        autocompletion=context_names,
    ),
]
ReasonOption = Annotated[
    str, typer.Option("--reason", "-r", help="Reason of the change; recorded in the audit log.", show_default=False)
]
OptionalReasonOption = Annotated[
    str | None,
    typer.Option("--reason", "-r", help="Reason of the change; recorded in the audit log.", show_default=False),
]

DryRunOption = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Let the control plane check the change and print what it would do; nothing changes.",
        show_default=False,
    ),
]

_CONTEXT = "command_context"
"""Parameter with the context of typer, which has the name of the command."""

_REMEDY = "give --url or --context, or choose a context with `penstock context use`"


@dataclass(frozen=True)
class FleetOptions:
    """The connection options of a command."""

    url: UrlOption = None
    token_file: TokenFileOption = None
    ca_file: CaFileOption = None
    context: ContextOption = None

    def agent_access(self, key_file: Path | None = None, environment: Mapping[str, str] = os.environ) -> AgentAccess:
        """Return the access to the admin listeners of the selected fleet's agents.

        The token for control planes is never sent to agents: a stolen agent could use it.

        Args:
            key_file: file with the key for agents; None uses the file of the context or of PENSTOCK_AGENTS_KEY_FILE.
            environment: the environment variables.

        Raises:
            UsageFault, BadContexts: as for `connect`.
            BadSecret: the file of the key is unusable.
        """
        selected = select_context(self.url, self.context, environment)
        path = key_file or selected.agents_key_file or environment.get("PENSTOCK_AGENTS_KEY_FILE")
        key = load_admin_token(Path(path)) if path else None
        return AgentAccess(key, _client_tls(self.ca_file or selected.ca_file, environment))

    def connect(self, environment: Mapping[str, str] = os.environ, timeout_s: float = TIMEOUT_S) -> ApiClient:
        """Return a client for the control planes that the options select.

        Precedence: --url, --context, PENSTOCK_URL, PENSTOCK_CONTEXT, the current context. The token of a context is
        sent only to the URLs of that context.

        Args:
            environment: the environment variables.
            timeout_s: time limit (s) of each request.

        Raises:
            UsageFault: no control plane is selected, or the options contradict each other.
            BadContexts: the context file is unusable or lacks the context.
            BadSecret: the token file is unusable.
        """
        return self._client(environment, timeout_s, is_dry_run=False)

    def _client(self, environment: Mapping[str, str], timeout_s: float, is_dry_run: bool) -> ApiClient:
        selected = select_context(self.url, self.context, environment)
        token_path = self.token_file or selected.token_file or environment.get("PENSTOCK_ADMIN_TOKEN_FILE")
        if not token_path:
            raise UsageFault("no token: give --token-file, or set PENSTOCK_ADMIN_TOKEN_FILE")
        token = load_admin_token(Path(token_path))
        tls = _client_tls(self.ca_file or selected.ca_file, environment)
        return ApiClient(selected.urls, token, tls=tls, timeout_s=timeout_s, is_dry_run=is_dry_run)


@dataclass(frozen=True)
class ChangeOptions(FleetOptions):
    """The connection options of a command that makes a change, and whether it is only to be shown."""

    dry_run: DryRunOption = False

    def connect(self, environment: Mapping[str, str] = os.environ, timeout_s: float = TIMEOUT_S) -> ApiClient:
        """Return a client as `FleetOptions.connect` does; with --dry-run, one that makes no change."""
        return self._client(environment, timeout_s, self.dry_run)


def _client_tls(ca_file: Path | str | None, environment: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context for control planes and agents; None if neither authorities nor a certificate are named."""
    ca_path, identity = ca_file or environment.get("PENSTOCK_CA_FILE"), environment.get("PENSTOCK_CLIENT_IDENTITY_DIR")
    if not ca_path and not identity:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca_path:
        load_authorities(context, Path(ca_path))
    else:
        load_system_authorities(context)
    if identity:
        # Imported late, because this import loads cryptography and the log, which only a certificate needs.
        from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY

        try:
            load_pair(context, Path(identity) / CERTIFICATE, Path(identity) / PRIVATE_KEY)
        except BadTlsFiles as error:
            problem = f"not a usable identity: {error}"
            raise UsageFault(f"PENSTOCK_CLIENT_IDENTITY_DIR: {problem}; make one with `penstock certs issue`") from None
    return context


ReadClient = Annotated[ApiClient, FleetOptions]
"""Type of the parameter `api` of a command that reads the fleet."""

ChangeClient = Annotated[ApiClient, ChangeOptions]
"""Type of the parameter `api` of a command that makes a change."""


def with_fleet_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter `api` or `fleet` of a command by connection options, placed before --output.

    A command with the parameter `api`, a ReadClient or ChangeClient, receives a connected client; errors end it with a
    message and the exit code. One with the parameter `fleet`, FleetOptions or ChangeOptions, connects by itself.
    """
    own = signature(command, eval_str=True).parameters
    is_connected = "api" in own
    connection: type[FleetOptions] = get_args(own["api"].annotation)[1] if is_connected else own["fleet"].annotation
    options = signature(connection, eval_str=True).parameters
    last = [name for name in own if name == "output"]
    order = [*(name for name in own if name not in ("api", "fleet", "output")), *options, *last]
    every = {**own, **options}
    if is_connected:
        order.append(_CONTEXT)
        every[_CONTEXT] = Parameter(_CONTEXT, Parameter.KEYWORD_ONLY, annotation=typer.Context)

    @wraps(command)
    def run(**given: Any) -> None:
        fleet = connection(**{name: given.pop(name) for name in options})
        if is_connected:
            own_name = given.pop(_CONTEXT).command_path.partition(" ")[2]
            with exit_on_error(own_name), fleet.connect() as api:
                command(api=api, **given)
        else:
            command(fleet=fleet, **given)
        if isinstance(fleet, ChangeOptions) and fleet.dry_run:
            typer.echo("dry run: nothing was changed", err=True)

    # typer derives the options from the signature.
    parameters = [every[name].replace(kind=Parameter.KEYWORD_ONLY) for name in order]
    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def select_context(url: str | None, context: str | None, environment: Mapping[str, str]) -> Context:
    """Return the context that flags, environment and context file select, by the precedence of `FleetOptions.connect`.

    Raises:
        UsageFault: no control plane is selected, or --url and --context are both given.
        BadContexts: the context file is unusable or lacks the context.
    """
    if url is not None and context is not None:
        raise UsageFault("--url and --context cannot be used together")
    if url is None and context is None:
        url = environment.get("PENSTOCK_URL") or None
        context = environment.get("PENSTOCK_CONTEXT") or None if url is None else None
    if url is not None:
        urls = tuple(part.strip() for part in url.split(",") if part.strip())
        if not urls:
            raise UsageFault(f"no control plane is selected; {_REMEDY}")
        for base_url in urls:
            if (flaw := url_flaw(base_url)) is not None:
                raise UsageFault(flaw)
        return Context(urls)
    known: Contexts = load_contexts()
    name = context or known.current
    if name is None:
        raise UsageFault(f"no control plane is selected; {_REMEDY}")
    return known.named(name)
