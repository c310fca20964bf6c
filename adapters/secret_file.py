"""Reads secrets from files. Errors name the file and the remedy, never the content."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 64 * 1024
"""A few lines hold a secret; anything larger is another file."""

REMEDY = "make one with `openssl rand -hex 32`"


class BadSecret(Exception):
    """The file cannot be used; the message names it and the remedy, and shows nothing of what it holds."""


def read_secrets(path: Path, what: str, *, min_bytes: int, remedy: str = REMEDY) -> list[bytes]:
    """The secrets of a file, one a line; blank lines and the space around a secret do not count.

    Args:
        path: the file, which others than its owner and group must not be able to read or write.
        what: what it holds, for the message, such as "fleet key".
        min_bytes: a shorter secret is refused: it may be guessed.
        remedy: where another one is to be had.

    Raises:
        BadSecret: the file is missing, unreadable, open to others, too large or empty, or a secret is too short.
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
    """The one secret of a file; like `read_secrets`.

    Raises:
        BadSecret: as there, or the file has several lines.
    """
    secrets = read_secrets(path, what, min_bytes=min_bytes)
    if len(secrets) > 1:
        raise BadSecret(f"{path}: holds no {what}, which is one line; {REMEDY}")
    return secrets[0]


def read_file(path: Path, what: str, remedy: str, *, public: bool = False) -> bytes:
    """The content of a file of limited size.

    Args:
        path: the file.
        what: what it holds, for the message.
        remedy: where another one is to be had.
        public: the file is no secret; every user may read it.

    Raises:
        BadSecret: the file is missing, unreadable or too large, or a secret that others may read.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadSecret(f"{path}: cannot read the {what}: {error.strerror}; {remedy}") from None
    if not public and stat.S_ISREG(mode) and mode & stat.S_IRWXO:
        raise BadSecret(f"{path}: the {what} is open to every user of this machine; chmod o-rwx {path}")
    if len(content) > MAX_FILE_BYTES:
        raise BadSecret(f"{path}: holds no {what}, for it has more than {MAX_FILE_BYTES} bytes; {remedy}")
    return content
