"""Lets one process hold thousands of sockets."""

from __future__ import annotations

import resource

ENOUGH = 65_536
"""Open files that the largest planet on one machine needs."""


def allow_many_open_files() -> int:
    """Raise this process's limit of open files to ENOUGH, or as far as it may itself; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft
