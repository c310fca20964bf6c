"""Reloads a secret when its file changes. Separate from `secret_file`, because every command imports that module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

import structlog

from adapters.file_stamp import file_stamp
from adapters.secret_file import BadSecret

_log = structlog.get_logger(__name__)


class Renewable(Protocol):
    """A secret that changes while it is in use."""

    def use(self, renewed: Self) -> None:
        """Replace the content of this secret by the content of `renewed`."""


SecretT = TypeVar("SecretT", bound=Renewable)


class SecretFile(Generic[SecretT]):
    """A secret that is loaded again when its file changes.

    Args:
        path: the file.
        what: name of the secret, for messages.
        load: reads the file; raises BadSecret.

    Raises:
        BadSecret: the file cannot be used at startup. Later errors are only logged.
    """

    def __init__(self, path: Path, what: str, load: Callable[[Path], SecretT]) -> None:
        self._path = path
        self._what = what
        self._load = load
        self._stamp = file_stamp(path)
        self.problem = ""
        """The problem of the current files; empty while their content is in use."""
        self.secret = load(path)

    def reload_if_changed(self) -> None:
        """Use a changed secret; keep the last good one while the file cannot be used, which its mode may cause."""
        stamp = file_stamp(self._path)
        if stamp == self._stamp and not self.problem:
            return
        self._stamp = stamp
        try:
            self.secret.use(self._load(self._path))
        except BadSecret as error:
            if str(error) != self.problem:
                self.problem = str(error)
                _log.error("secret not reloaded; the previous one stays in force", secret=self._what, reason=str(error))
        else:
            self.problem = ""
            _log.info("secret reloaded", secret=self._what)
