"""API keys, from a file of their digests.

A changed file is reloaded; if the changed file is invalid, the last valid keys stay in force.
"""

from __future__ import annotations

import hmac
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
import yaml

from adapters.access.callers import Caller, Role
from adapters.files.plain_file import UnusableFile, read_plain_file
from adapters.files.watched_files import WatchedFiles

MAX_FILE_BYTES = 256 * 1024
"""Maximum size (bytes) of the file, enough for about a thousand keys."""

_REMEDY = 'see docs/api.md, API keys; create a digest with `printf %s "$KEY" | sha256sum`'


class BadApiKeys(UnusableFile):
    """The file of API keys is unusable; the message names the file, the error and the remedy."""


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the file of API keys; contains the digest of a key, never the key."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9@._-]{0,63}$")]
    """Name of the holder, recorded in the audit log."""
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the key, in lower-case hexadecimal."""
    role: Role
    regions: frozenset[str] | None = None
    """Regions that the holder may change. Default: all."""


class ApiKeys:
    """The keys of one file.

    Args:
        path: a YAML or JSON file with a list of ApiKey.

    Raises:
        BadApiKeys: the file is unusable at startup. Later errors are only logged.
    """

    def __init__(self, path: Path) -> None:
        self.files = WatchedFiles((path,), lambda: read_api_keys(path))

    def caller(self, key: str) -> Caller | None:
        """Return the holder of a key. Compares every digest, so that the duration does not depend on the match."""
        digest = sha256(key.encode("utf-8", "replace")).hexdigest()
        found = None
        for key_entry in self.files.content:
            if hmac.compare_digest(key_entry.sha256, digest):
                found = key_entry
        return Caller(found.name, found.role, found.regions) if found is not None else None


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """Read a file of API keys.

    Raises:
        BadApiKeys: the file is missing, unreadable, empty, too large or malformed, or two entries share a name or
            digest.
    """
    try:
        content = read_plain_file(path, MAX_FILE_BYTES).content
    except OSError as error:
        raise BadApiKeys(f"{path}: cannot read the API keys: {error.strerror}; {_REMEDY}") from None
    try:
        entries = yaml.safe_load(content)
        if entries is None:
            # A crash or a full disk truncates files, which must not revoke the keys that administrators need then.
            raise BadApiKeys(f"{path}: has no keys; restore its content, or write [] to revoke every key")
        keys = msgspec.convert(entries, tuple[ApiKey, ...])
    except msgspec.ValidationError as error:
        raise BadApiKeys(f"{path}: {error}; {_REMEDY}") from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, RecursionError):
        # Besides its own errors, PyYAML raises those of `int`, `chr` and dictionaries for some tags and escapes.
        # The parser's message is omitted: it quotes the input, which may contain a key by mistake.
        raise BadApiKeys(f"{path}: neither YAML nor JSON; {_REMEDY}") from None
    for field in ("name", "sha256"):
        values = [getattr(key, field) for key in keys]
        twice = {value for value in values if values.count(value) > 1}
        if twice:
            raise BadApiKeys(f"{path}: two entries with the {field} {min(twice)}; {_REMEDY}")
    return keys
