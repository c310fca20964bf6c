"""Contexts of the CLI: the control planes of several fleets by name. The file has paths of token files, not tokens.

The file is $PENSTOCK_CONTEXTS_FILE, else penstock/contexts.yaml under $XDG_CONFIG_HOME or ~/.config.
"""

from __future__ import annotations

import os
import tempfile
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from adapters.files.plain_file import read_plain_file

MAX_FILE_BYTES = 1 << 20

MAX_NAME_CHARACTERS = 64


class BadContexts(Exception):
    """The context file is unusable or lacks the context; the message has the remedy."""


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The control planes of one fleet."""

    urls: tuple[str, ...]
    """Base URLs, as https://host:port; tried in order. The leader is found through any of them."""
    token_file: str | None = None
    """Path of the file with the token."""
    ca_file: str | None = None
    """PEM file of the authorities that sign the certificates of control planes and agents; None: those that the system
    trusts."""
    agents_key_file: str | None = None
    """Path of the file with the API key for the admin listeners of agents."""


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Content of the context file."""

    current: str | None = None
    """Name of the current context."""
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """Return a context.

        Raises:
            BadContexts: there is no context of that name.
        """
        found = self.contexts.get(name)
        if found is not None:
            return found
        close = get_close_matches(name, self.contexts, n=1)
        remedy = f"did you mean {close[0]}?" if close else "`penstock context list` prints the contexts"
        raise BadContexts(f"{contexts_file()}: no context {name!r}; {remedy}")


def contexts_file() -> Path:
    """Return the path of the context file."""
    named = os.environ.get("PENSTOCK_CONTEXTS_FILE")
    if named:
        return Path(named)
    configuration = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configuration) if configuration else Path.home() / ".config") / "penstock" / "contexts.yaml"


def load_contexts() -> Contexts:
    """Read the context file; a missing file counts as one without contexts.

    Raises:
        BadContexts: the file cannot be read or is malformed.
    """
    file = contexts_file()
    try:
        content = read_plain_file(file, MAX_FILE_BYTES).content
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise BadContexts(f"{file}: cannot be read: {error.strerror}") from None
    if not content.strip():
        return Contexts()
    try:
        contexts = msgspec.yaml.decode(content, type=Contexts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadContexts(f"{file}: {' '.join(str(error).split())}; see docs/cli.md for the format") from None
    for name, context in contexts.contexts.items():
        check(name, context)
    return contexts


def check(name: str, context: Context) -> None:
    """Check a context.

    Raises:
        BadContexts: its name or one of its URLs is malformed.
    """
    if not name.isprintable() or " " in name or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise BadContexts(f"{name!r} is not a valid name: use up to {MAX_NAME_CHARACTERS} characters without spaces")
    if not context.urls:
        raise BadContexts(f"context {name}: has no urls; name at least one control plane as https://host:port")
    for url in context.urls:
        if (flaw := url_flaw(url)) is not None:
            raise BadContexts(f"context {name}: {flaw}")


def url_flaw(url: str) -> str | None:
    """Return the error of a control plane's URL; None if it is valid."""
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query or parts.fragment:
        return f"{url!r} is not of the form http://host:port or https://host:port"
    if parts.username is not None:
        return "a URL names a user; put the token into a file and use --token-file"
    return None


def _parts(url: str) -> SplitResult | None:
    """Return the parts of a URL; None if its host or port is invalid."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return None
    return parts if host and port != 0 else None


def save_contexts(contexts: Contexts) -> Path:
    """Write the context file, readable only by its owner; return its path.

    Raises:
        BadContexts: the file cannot be written.
    """
    file = contexts_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp restricts the file to its owner, and the rename is atomic.
        descriptor, written = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.yaml.encode(contexts, order="sorted"))
        Path(written).replace(file)
    except OSError as error:
        raise BadContexts(
            f"{file}: cannot be written: {error.strerror}; set PENSTOCK_CONTEXTS_FILE to another file"
        ) from None
    return file


def context_names() -> list[str]:
    """Return the names for shell completion; none if the file is unusable."""
    try:
        return sorted(load_contexts().contexts)
    except BadContexts:
        return []
