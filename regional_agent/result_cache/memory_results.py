"""The kept responses in the memory of one agent, in front of those in Redis."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from penstock.result_cache.cached_result import CachedResult

MAX_MEMORY_BYTES: Final = 64 * 1024 * 1024
"""Maximum size (bytes) of the responses that an agent keeps in its memory."""


class MemoryResults:
    """Responses by key; the least recently used ones are removed first."""

    def __init__(self, max_bytes: int = MAX_MEMORY_BYTES) -> None:
        """Keep up to `max_bytes`."""
        self._max_bytes = max_bytes
        self._results: OrderedDict[bytes, CachedResult] = OrderedDict()
        self.size_bytes = 0
        """Size of the kept responses, with their overhead."""

    def find(self, key: bytes, now: float) -> CachedResult | None:
        """Return the response with a key, unless it has expired at `now` (Unix time, s)."""
        found = self._results.get(key)
        if found is None:
            return None
        if not found.is_fresh(now):
            self._remove(key)
            return None
        self._results.move_to_end(key)
        return found

    def put(self, result: CachedResult) -> None:
        """Keep a response, in place of an earlier one with its key."""
        self._remove(result.key)
        if result.size_bytes > self._max_bytes:
            return
        self._results[result.key] = result
        self.size_bytes += result.size_bytes
        while self.size_bytes > self._max_bytes:
            self._remove(next(iter(self._results)))

    def _remove(self, key: bytes) -> None:
        removed = self._results.pop(key, None)
        if removed is not None:
            self.size_bytes -= removed.size_bytes
