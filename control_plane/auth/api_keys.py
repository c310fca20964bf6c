"""API keys from a file that holds their digests: read again when it changes, the last good state of it kept."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
import yaml

from adapters.file_stamp import file_stamp
from control_plane.auth.callers import Caller, Role

MAX_FILE_BYTES = 256 * 1024
"""Room for about a thousand keys."""

LOOK_S = 1.0
"""The file is looked at again at most this often (s)."""

_REMEDY = 'see docs/api.md, API keys; a digest is made with `printf %s "$KEY" | sha256sum`'

_log = structlog.get_logger(__name__)


class BadApiKeys(Exception):
    """The key file cannot be used; the message names the file, what is wrong and the remedy."""


class ApiKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the file. The key itself is nowhere."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9@._-]{0,63}$")]
    """Who holds the key; stands in the audit log."""
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the key, in lower-case hex."""
    role: Role
    regions: frozenset[str] | None = None
    """The regions that the holder may change; left out: all."""


class ApiKeys:
    """The keys of one file.

    Args:
        path: YAML or JSON: a list of ApiKey.
        clock: seconds, monotonic.

    Raises:
        BadApiKeys: it cannot be used now. Once it could, a bad state of it is logged and changes nothing.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        self._stamp = file_stamp(path)
        self._keys = read_api_keys(path)

    def caller(self, key: str) -> Caller | None:
        """Whose key it is. Every digest is compared, so that the time taken tells nothing of where a match was."""
        self._look()
        digest = sha256(key.encode("utf-8", "replace")).hexdigest()
        found = None
        for one in self._keys:
            if hmac.compare_digest(one.sha256, digest):
                found = one
        return Caller(found.name, found.role, found.regions) if found is not None else None

    def _look(self) -> None:
        """Read the file again if it changed since it was last read."""
        now = self._clock()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._keys = read_api_keys(self._path)
        except BadApiKeys as error:
            _log.error("API keys not read again; the ones before stay", reason=str(error))
        else:
            _log.info("API keys read again", keys=len(self._keys))


def read_api_keys(path: Path) -> tuple[ApiKey, ...]:
    """The entries of a key file.

    Raises:
        BadApiKeys: it is missing, unreadable, too large or malformed, or two entries share a name or a digest.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadApiKeys(f"{path}: cannot read the API keys: {error.strerror}; {_REMEDY}") from None
    if len(content) > MAX_FILE_BYTES:
        raise BadApiKeys(f"{path}: more than {MAX_FILE_BYTES} bytes is no file of API keys; {_REMEDY}")
    try:
        keys = msgspec.convert(yaml.safe_load(content) or [], tuple[ApiKey, ...])
    except msgspec.ValidationError as error:
        raise BadApiKeys(f"{path}: {error}; {_REMEDY}") from None
    except (yaml.YAMLError, ValueError, RecursionError):
        # A parser's message quotes what it could not read, which may be a key that somebody put there by mistake.
        raise BadApiKeys(f"{path}: neither YAML nor JSON; {_REMEDY}") from None
    for field in ("name", "sha256"):
        values = [getattr(key, field) for key in keys]
        twice = {value for value in values if values.count(value) > 1}
        if twice:
            raise BadApiKeys(f"{path}: two entries with the {field} {min(twice)}; {_REMEDY}")
    return keys
