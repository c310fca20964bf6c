"""Named contexts of the CLI: where several fleets' control planes are. Tokens are never in it, only their files' names.

The file is $PENSTOCK_CONFIG, else penstock/contexts.yaml under $XDG_CONFIG_HOME or ~/.config.
"""

from __future__ import annotations

import os
import tempfile
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

MAX_FILE_BYTES = 1 << 20

MAX_NAME_CHARACTERS = 64


class BadContexts(Exception):
    """The file of contexts cannot be used, or lacks what is asked for; the message says what to do."""


class Context(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Where one fleet's control planes are."""

    urls: tuple[str, ...]
    """Base URLs, as https://host:port; tried in turn, and the leader is found through any of them."""
    token_file: str | None = None
    """File with the token to send."""
    ca_file: str | None = None
    """PEM certificates of the authorities that sign the control planes' certificates; None takes the system's."""


class Contexts(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The file's content."""

    current: str | None = None
    """Name of the context in use."""
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """One context.

        Raises:
            BadContexts: there is none of that name.
        """
        found = self.contexts.get(name)
        if found is not None:
            return found
        close = get_close_matches(name, self.contexts, n=1)
        remedy = f"did you mean {close[0]}?" if close else "`penstock context list` shows those there are"
        raise BadContexts(f"{contexts_file()}: no context {name!r}; {remedy}")


def contexts_file() -> Path:
    """Where contexts are kept."""
    named = os.environ.get("PENSTOCK_CONFIG")
    if named:
        return Path(named)
    configuration = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configuration) if configuration else Path.home() / ".config") / "penstock" / "contexts.yaml"


def load_contexts() -> Contexts:
    """The contexts there are; none where there is no file.

    Raises:
        BadContexts: the file cannot be read, or is not one of contexts.
    """
    file = contexts_file()
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise BadContexts(f"{file}: cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadContexts(f"{file}: larger than {MAX_FILE_BYTES} bytes")
    if not content.strip():
        return Contexts()
    try:
        contexts = msgspec.yaml.decode(content, type=Contexts)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise BadContexts(f"{file}: {' '.join(str(error).split())}; docs/cli.md shows its form") from None
    for name, context in contexts.contexts.items():
        check(name, context)
    return contexts


def check(name: str, context: Context) -> None:
    """See that a context can be used.

    Raises:
        BadContexts: its name or one of its URLs is not well-formed.
    """
    if not name.isprintable() or " " in name or not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise BadContexts(f"{name!r} is no name of a context: up to {MAX_NAME_CHARACTERS} characters, no spaces")
    if not context.urls:
        raise BadContexts(f"context {name}: has no urls; name at least one control plane as https://host:port")
    for url in context.urls:
        if (flaw := url_flaw(url)) is not None:
            raise BadContexts(f"context {name}: {flaw}")


def url_flaw(url: str) -> str | None:
    """What is wrong with the URL of a control plane; None where nothing is."""
    parts = _parts(url)
    if parts is None or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query or parts.fragment:
        return f"{url!r} is not of the form http://host:port or https://host:port"
    if parts.username is not None:
        return "a URL names a user; put the token into a file and name it"
    return None


def _parts(url: str) -> SplitResult | None:
    """A URL taken apart; None where it names no host and port that can be."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return None
    return parts if host and port != 0 else None


def save_contexts(contexts: Contexts) -> Path:
    """Write the file whole, readable by its owner alone; returns where.

    Raises:
        BadContexts: it cannot be written.
    """
    file = contexts_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # mkstemp makes it for its owner alone, and a rename replaces the old one whole or not at all.
        descriptor, written = tempfile.mkstemp(dir=file.parent, prefix=".contexts-")
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.yaml.encode(contexts, order="sorted"))
        Path(written).replace(file)
    except OSError as error:
        raise BadContexts(
            f"{file}: cannot be written: {error.strerror}; name another file in PENSTOCK_CONFIG"
        ) from None
    return file


def context_names() -> list[str]:
    """Names for shell completion; none where the file cannot be used."""
    try:
        return sorted(load_contexts().contexts)
    except BadContexts:
        return []
