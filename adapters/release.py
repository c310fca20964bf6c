"""The release of Penstock that this process runs."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def release() -> str:
    """Return the version of the installed package; empty where it runs from a folder that is not installed."""
    try:
        return version("penstock")
    except PackageNotFoundError:
        return ""
