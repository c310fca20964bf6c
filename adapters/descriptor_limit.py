"""The limit of open file descriptors of this process."""

from __future__ import annotations

import resource

MAX_DESCRIPTORS = 1 << 20
"""Linux's default maximum per process (fs.nr_open)."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard limit, at most MAX_DESCRIPTORS; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
