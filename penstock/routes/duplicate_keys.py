"""Checks the keys of an object in a body: each key once, and none that a parser could take for another one.

Go's decoder compares keys without case, and parsers in C may end a key at a NUL. Of a repeated key, parsers use the
first value or the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_KEYS: Final = 1024
"""Maximum number of keys of one object; their check takes less than a millisecond."""

MAX_CACHED: Final = 1024
MAX_CACHED_CHARS: Final = 64

_DOT_ABOVE: Final = "\u0307"
"""Follows the `i` that is the lower case of a dotted capital I."""


class FieldError(Exception):
    """The body is valid JSON, but is refused. Not a subclass of ValueError, because msgspec would wrap a ValueError."""


class _Known:
    """A key that was checked before."""

    def __init__(self, replacement: Any) -> None:
        self.replacement = replacement
        """What the decoder uses in place of the key."""
        self.seen_in = 0
        """The number of the object in which the key occurred last."""


class ObjectKeys:
    """Checks the keys of one object at a time, as the decoder reads them."""

    def __init__(self, keys: Mapping[str, Any], other: Any) -> None:
        """Check objects whose keys `keys` are read.

        Args:
            keys: what the decoder uses in place of each key that is read.
            other: what the decoder uses in place of any other key.
        """
        self._read = {key: _Known(replacement) for key, replacement in keys.items()}
        """The keys that are read."""
        self._known = dict(self._read)
        """These, and a cache of other keys, since most bodies have the same few keys. A full cache is cleared."""
        self._most_known = len(keys) + MAX_CACHED
        self._by_folded = {folded(key): key for key in keys}
        self._other = other
        self._number = 0
        """The number of the object that is checked."""
        self._new: set[str] = set()
        """Its keys that are not cached."""
        self.count = 0
        """Number of its keys."""

    def begin(self) -> None:
        """Begin an object."""
        self._number += 1
        self.count = 0
        self._new.clear()
        if len(self._known) >= self._most_known:
            self._known = dict(self._read)

    @property
    def cached(self) -> int:
        """Number of keys that are known without a further check."""
        return len(self._known)

    def on_key(self, _wanted: Any, key: str) -> Any:
        """Process a key; the decoder's hook.

        Raises:
            FieldError: the key is repeated, resembles a key that is read, or is one too many.
        """
        self.count += 1
        if self.count > MAX_KEYS:
            raise FieldError(f"an object has more than {MAX_KEYS} fields")
        known = self._known.get(key)
        if known is None:
            return self._on_new(key)
        if known.seen_in == self._number:
            raise FieldError(f"the field {shown(key)} is repeated; send it once")
        known.seen_in = self._number
        return known.replacement

    def _on_new(self, key: str) -> Any:
        if key in self._new:
            raise FieldError(f"the field {shown(key)} is repeated; send it once")
        if "\0" in key:
            raise FieldError(f"the name of the field {shown(key)} contains a NUL")
        name = self._by_folded.get(folded(key))
        if name is not None:
            raise FieldError(f"the field {shown(key)} could be read as {name!r}; send it in that spelling")
        if len(key) <= MAX_CACHED_CHARS and len(self._known) < self._most_known:
            known = self._known[key] = _Known(self._other)
            known.seen_in = self._number
        else:
            self._new.add(key)
        return self._other


def folded(key: str) -> str:
    """A key in the form by which parsers that ignore case compare it, by either case and by any Unicode folding."""
    return key.lower() if key.isascii() else key.upper().casefold().replace(_DOT_ABOVE, "")


def shown(key: str) -> str:
    """A key as text for people, in bounded length."""
    return repr(key if len(key) <= MAX_CACHED_CHARS else f"{key[:MAX_CACHED_CHARS]}...")
