"""The release of Penstock that this process runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def release() -> str:
    """Return the version of the installed package; empty if the package is not installed."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return ""
