"""The home of a session: the region that serves all its requests, so that its prompt is computed once.

Weighted rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998; weights as
in Schindelhauer and Schomaker, 2005) over the shares of the plan. No agent keeps a state: every agent computes the same
home from the session's key and the shares. A session leaves its home if the home's share shrinks, the region becomes
unusable, or residency forbids it, and if it moves to a region whose share grows: a shift of d between two regions moves
the part d of all sessions, and d / (1 + d) of the sessions of each other region. A lost region moves its own alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import log
from typing import Final
from zlib import crc32

from penstock.routing.affinity import scope_tag

MAX_FIRST_MESSAGE_BYTES: Final = 256 * 1024
"""Part (bytes) of a prompt in which the first message of the user is searched: the instructions and tools of agents
may come before it."""

_USER: Final = re.compile(rb'"role"\s{0,16}:\s{0,16}"user"')
"""The role of the first message that differs between conversations. The name alone may be that of a tool's argument."""

_CONTENT: Final = re.compile(rb'"(?:content|text)"\s*:\s*"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
"""The text of a message, or of the first part of a message with several parts."""

MAX_CONTENT_BYTES: Final = 4096
"""Part (bytes) of the first message of the user that counts: longer messages rarely differ only after it."""

MAX_SPACE_BYTES: Final = 16
"""White space (bytes) between a role and the end of its message."""

_HASHES: Final = 2**64


def home_of(session: int, shares: Mapping[str, float]) -> str:
    """Return the home of a session among the regions with a positive share.

    Args:
        session: key of the session.
        shares: share of each region; the sum does not matter. At least one is positive.
    """
    best, lowest = "", 0.0
    for region, share in shares.items():
        if share <= 0.0:
            continue
        # Exponential with the rate `share`: the probability to be the lowest is proportional to the share.
        drawn = -log((_mixed(session << 32 ^ crc32(region.encode())) + 1) / _HASHES) / share
        if not best or drawn < lowest:
            best, lowest = region, drawn
    return best


def _mixed(number: int) -> int:
    """Return a hash of a number, from 0 to 2^64 - 1 (splitmix64: Steele, Lea and Flood, OOPSLA 2014)."""
    number = number * 0x9E3779B97F4A7C15 & _HASHES - 1
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _HASHES - 1
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _HASHES - 1
    return number ^ number >> 31


def conversation_key(scope: str, prompt: memoryview) -> int | None:
    """Return the key of a conversation that its client does not name: that of the prompt up to its first user message.

    The beginning alone would not do: the conversations of an application begin with the same instructions. The next
    turns of a conversation have the same first messages.

    Args:
        scope: tenant and model; a tenant cannot choose the key of another one.
        prompt: the prompt as received, JSON included, or the part of it that has arrived.

    Returns None where no message of a user was found, such as for embeddings.
    """
    text = bytes(prompt[:MAX_FIRST_MESSAGE_BYTES])
    user = _USER.search(text)
    if user is None:
        return None
    end = user.end()
    if not text[end : end + MAX_SPACE_BYTES].lstrip().startswith(b"}"):
        # The role is before the content, as clients write it.
        content = _CONTENT.search(text, end, end + MAX_CONTENT_BYTES)
        end = end + MAX_CONTENT_BYTES if content is None else content.end()
    key = crc32(scope.encode())
    return crc32(memoryview(text)[:end], key) | scope_tag(key)
