"""Raises the limit of open files, so that one process can hold thousands of sockets."""

from __future__ import annotations

import resource

ENOUGH = 65_536
"""Number of open files that the largest fleet on one machine needs."""


def allow_many_open_files() -> int:
    """Raise this process's limit of open files to ENOUGH, or to the hard limit. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
