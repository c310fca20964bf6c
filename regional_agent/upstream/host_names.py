"""What may stand for a host in an address: what cannot be looked up is better refused where it is written down."""

from __future__ import annotations

import re
from ipaddress import ip_address

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NUMBER_LAST = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)\.?")
"""Resolvers take such a name for an IPv4 address written in another way."""

_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*\.?")


def is_host(text: str) -> bool:
    """Whether it is an IP address or a name of the form that DNS has (RFC 1123, and `_`, which some networks use)."""
    if _NAME.fullmatch(text) and not _NUMBER_LAST.fullmatch(text):
        return True
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
