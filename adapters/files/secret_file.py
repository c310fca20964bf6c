"""Reads secrets from files. Error messages name the file and the remedy, never the content."""

from __future__ import annotations

import stat
from pathlib import Path

from adapters.files.plain_file import UnusableFile, read_plain_file

MAX_FILE_BYTES = 64 * 1024
"""Maximum size (bytes) of a file of secrets."""

REMEDY = "create one with `openssl rand -hex 32`"


class BadSecret(UnusableFile):
    """The file is unusable; the message names the file and the remedy, and contains no part of the secret."""


def read_secrets(path: Path, what: str, *, min_bytes: int, remedy: str = REMEDY) -> list[bytes]:
    """Return the secrets of a file: one per line; blank lines and surrounding white space are ignored.

    Args:
        path: the file; users other than its owner and group must not have access.
        what: name of the secret for messages, such as "admin token".
        min_bytes: minimum length of a secret; a shorter one could be guessed.
        remedy: how to obtain a secret, for messages.

    Raises:
        BadSecret: the file is missing, unreadable, accessible to all users, too large or empty, or a secret is too
            short.
    """
    content = read_file(path, what, remedy)
    secrets = [line.strip() for line in content.splitlines() if line.strip()]
    if not secrets:
        raise BadSecret(f"{path}: the file of the {what} is empty; {remedy}")
    for number, secret in enumerate(secrets, start=1):
        if len(secret) < min_bytes:
            which = f"{what} {number}" if len(secrets) > 1 else f"the {what}"
            raise BadSecret(f"{path}: {which} has {len(secret)} bytes, fewer than {min_bytes}; {remedy}")
    return secrets


def read_secret(path: Path, what: str, *, min_bytes: int) -> bytes:
    """Return the only secret of a file; see `read_secrets`.

    Raises:
        BadSecret: as for `read_secrets`, or the file has several lines.
    """
    secrets = read_secrets(path, what, min_bytes=min_bytes)
    if len(secrets) > 1:
        raise BadSecret(f"{path}: the {what} must be one line; {REMEDY}")
    return secrets[0]


def read_file(path: Path, what: str, remedy: str, *, public: bool = False) -> bytes:
    """Return the content of a file of limited size.

    Args:
        path: the file.
        what: name of the content, for messages.
        remedy: how to obtain the content, for messages.
        public: whether the content is not secret, so that every user may have access.

    Raises:
        BadSecret: the file is missing, unreadable, too large or not a regular file, or is a secret that is accessible
            to all users.
    """
    try:
        file = read_plain_file(path, MAX_FILE_BYTES)
    except OSError as error:
        raise BadSecret(f"{path}: cannot read the {what}: {error.strerror}; {remedy}") from None
    if not public and file.mode & stat.S_IRWXO:
        raise BadSecret(f"{path}: the {what} is accessible to every user of this machine; run chmod o-rwx {path}")
    return file.content
