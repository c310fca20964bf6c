"""Which control planes a command talks to: by its flags, by a named context, or by the environment."""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from control_plane.auth.admin_token import load_admin_token
from control_plane.cli.api_client import TIMEOUT_S, ApiClient
from control_plane.cli.contexts import Context, Contexts, context_names, load_contexts, url_flaw
from control_plane.cli.error_output import CommandFault

UrlOption = Annotated[
    str | None, typer.Option("--url", help="Base URLs of control planes, comma-separated (else $PENSTOCK_URL).")
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", help="Your token, one line (else $PENSTOCK_ADMIN_TOKEN_FILE)."),
]
CaFileOption = Annotated[
    Path | None,
    typer.Option("--ca-file", help="Authorities that sign the control planes' certificates (else $PENSTOCK_CA_FILE)."),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        help="A named context of `penstock context list` (else $PENSTOCK_CONTEXT).",
        autocompletion=context_names,
    ),
]

_REMEDY = "give --url, or --context, or choose a context with `penstock context use`"


@dataclass(frozen=True)
class Fleet:
    """Which control planes a command talks to, as its options say."""

    url: UrlOption = None
    token_file: TokenFileOption = None
    ca_file: CaFileOption = None
    context: ContextOption = None

    def connect(self, environment: Mapping[str, str] = os.environ, timeout_s: float = TIMEOUT_S) -> ApiClient:
        """A client for them.

        The first of these that is given says where they are: --url, --context, PENSTOCK_URL, PENSTOCK_CONTEXT, the
        context in use. A context's token is never sent to a URL that came from elsewhere.

        Args:
            environment: the variables to look at.
            timeout_s: how long (s) one control plane may take to answer.

        Raises:
            CommandFault: nothing says where they are, or two things do.
            BadContexts: the file of contexts cannot be used, or has no such context.
            BadSecret: the token's file cannot be used.
        """
        chosen = meant(self.url, self.context, environment)
        token_path = self.token_file or chosen.token_file or environment.get("PENSTOCK_ADMIN_TOKEN_FILE")
        if not token_path:
            raise CommandFault("no token: give --token-file, or set PENSTOCK_ADMIN_TOKEN_FILE")
        ca_path = self.ca_file or chosen.ca_file or environment.get("PENSTOCK_CA_FILE")
        try:
            token = load_admin_token(Path(token_path))
            return ApiClient(chosen.urls, token, ca_file=Path(ca_path) if ca_path else None, timeout_s=timeout_s)
        except (OSError, ssl.SSLError) as error:
            raise CommandFault(f"{ca_path}: cannot be used as certificates of authorities: {error.strerror}") from None


def for_fleet(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `fleet` is given by options: those of `Fleet`, after its own and before --output."""
    own = signature(command, eval_str=True).parameters
    options = signature(Fleet, eval_str=True).parameters
    last = [name for name in own if name == "output"]
    order = [*(name for name in own if name not in ("fleet", "output")), *options, *last]
    every = {**own, **options}

    @wraps(command)
    def run(**given: Any) -> None:
        command(fleet=Fleet(**{name: given.pop(name) for name in options}), **given)

    # What typer makes the options of.
    shown = [every[name].replace(kind=Parameter.KEYWORD_ONLY) for name in order]
    run.__signature__ = Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    return run


def meant(url: str | None, context: str | None, environment: Mapping[str, str]) -> Context:
    """The control planes that flags, environment and contexts mean, as `Fleet.connect` has it."""
    if url is not None and context is not None:
        raise CommandFault("--url and --context both say where the control planes are; give one of them")
    if url is None and context is None:
        url = environment.get("PENSTOCK_URL") or None
        context = environment.get("PENSTOCK_CONTEXT") or None if url is None else None
    if url is not None:
        urls = tuple(one.strip() for one in url.split(",") if one.strip())
        if not urls:
            raise CommandFault(f"no control plane is named; {_REMEDY}")
        for one in urls:
            if (flaw := url_flaw(one)) is not None:
                raise CommandFault(flaw)
        return Context(urls)
    known: Contexts = load_contexts()
    name = context or known.current
    if name is None:
        raise CommandFault(f"no control plane is named; {_REMEDY}")
    return known.named(name)
