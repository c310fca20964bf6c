"""What regions publish of the prompt beginnings in their caches, and what the caches of another region spare a request.

A sketch is a list of checksums. Each contains the tag of its scope (tenant and model), so that a request matches only
beginnings of its own tenant. The origin finds the length of a match in its own prompt: a region can state that it has a
beginning, but not how much that saves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from types import MappingProxyType
from typing import Final, NamedTuple
from zlib import crc32

from penstock.routing.endpoint_selection import EndpointView
from penstock.routing.prefixes.hot_prefixes import ANCHORS

MAX_ENTRIES: Final = 512
"""Maximum number of beginnings in the sketch of one agent."""

_ENTRY: Final = Struct("<QH")
"""Key, and wait of its holder in WAIT_UNIT_S."""

WAIT_UNIT_S: Final = 0.05
MAX_WAIT_UNITS: Final = 2**16 - 1

MAX_SKETCH_BYTES: Final = MAX_ENTRIES * _ENTRY.size

Sketch = Mapping[int, float]
"""Wait (s) of the soonest endpoint that holds a beginning, by its key."""

EMPTY: Final[Sketch] = MappingProxyType({})


class Held(NamedTuple):
    """The part of a prompt that a region holds."""

    blocks: int
    """Number of leading blocks."""
    wait_s: float
    """Wait (s) of the soonest endpoint that holds them."""


NOTHING_HELD: Final = Held(0, 0.0)


def encode_sketch(waits_s: Sketch) -> bytes:
    """Return a sketch as bytes, at most MAX_SKETCH_BYTES; equal sketches have equal bytes."""
    return b"".join(
        _ENTRY.pack(key, min(MAX_WAIT_UNITS, max(0, round(waits_s[key] / WAIT_UNIT_S))))
        for key in sorted(waits_s)[:MAX_ENTRIES]
    )


def decode_sketch(data: bytes) -> Sketch | None:
    """Return the sketch in `data`; None if it is none or too large."""
    if len(data) > MAX_SKETCH_BYTES or len(data) % _ENTRY.size:
        return None
    return {key: units * WAIT_UNIT_S for key, units in _ENTRY.iter_unpack(data)}


def digest_of(data: bytes) -> int:
    """Return the number by which a receiver states the sketch it has; 0 for an empty one."""
    return crc32(data) or 1 if data else 0


def holder_wait_s(holders: Sequence[EndpointView]) -> float | None:
    """Return the wait (s) until the soonest endpoint that holds a beginning starts a request; None without one."""
    waits_s = [
        view.score_coefficients[0] if view.takes_more else view.service_s
        for view in holders
        if view.ready and not view.draining
    ]
    return min(waits_s, default=None)


def held_in(sketch: Sketch, prefix: Sequence[int]) -> Held:
    """Return the longest beginning of a prompt in a sketch.

    Args:
        prefix: keys of the leading blocks of the prompt.
    """
    for blocks in reversed(ANCHORS):
        if blocks <= len(prefix):
            wait_s = sketch.get(prefix[blocks - 1])
            if wait_s is not None:
                return Held(blocks, wait_s)
    return NOTHING_HELD


def spared_s(held: Held, block_s: float, prefill_s: float, wait_s: float) -> float:
    """Return the time (s) by which the caches of a region bring the first token forward there; never negative.

    Args:
        held: what the region holds of the prompt.
        block_s: prefill (s) of one block.
        prefill_s: prefill (s) of the whole prompt, which bounds what any claim can save.
        wait_s: expected wait (s) in the region; a holder that is free later saves that much less.
    """
    return max(0.0, min(held.blocks * block_s, prefill_s) - max(0.0, held.wait_s - wait_s))
