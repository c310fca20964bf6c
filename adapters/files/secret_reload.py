"""Reloads a secret when its file changes. Separate from `secret_file`, because every command imports that module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from adapters.files.watched_files import WatchedFiles


class Renewable(Protocol):
    """A secret that changes while it is in use."""

    def use(self, renewed: Self) -> None:
        """Replace the content of this secret by the content of `renewed`."""


SecretT = TypeVar("SecretT", bound=Renewable)


class SecretFile(Generic[SecretT]):
    """A secret that is loaded again when its file changes.

    Args:
        path: the file.
        load: reads the file; raises BadSecret.

    Raises:
        BadSecret: the file cannot be used at startup. Later errors are only logged.
    """

    def __init__(self, path: Path, load: Callable[[Path], SecretT]) -> None:
        self.files = WatchedFiles((path,), lambda: load(path), lambda renewed: self.secret.use(renewed))
        self.secret = self.files.content
