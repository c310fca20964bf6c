"""Decodes the content coding of a response for reading; what the client receives is not changed.

Decoders: gzip (RFC 1952), deflate (RFC 1950, RFC 1951) and br (RFC 7932).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

MAX_PART_BYTES: Final = 64 * 1024
"""Maximum size (bytes) of one decoded part."""

MAX_DECODED_BYTES: Final = 64 * 1024 * 1024
"""Maximum decoded size (bytes) of one response; a response that decodes to more is no longer read."""

FREE_BYTES: Final = 1024 * 1024
MAX_RATIO: Final = 200
"""Maximum number of decoded bytes per encoded byte, after FREE_BYTES. JSON compresses to about a tenth of its size, a
decompression bomb to a thousandth."""

ZLIB_WINDOW: Final = 32 + zlib.MAX_WBITS
"""Detects the headers of gzip and zlib."""

_DEFLATE_METHOD: Final = 8
"""Lower half of the first byte of a zlib header (RFC 1950, section 2.2)."""


_DECODED: Final = frozenset({b"gzip", b"x-gzip", b"deflate", b"br", b"identity"})

_USUAL: Final = frozenset({b"gzip, deflate", b"gzip, deflate, br", b"gzip", b"identity"})
"""What clients send most often, all of which can be decoded."""


def decoded_codings(accepted: bytes) -> bytes:
    """The part of an Accept-Encoding whose codings can be decoded; `identity` if nothing remains."""
    if accepted in _USUAL:
        return accepted
    kept = [each for each in accepted.split(b",") if each.partition(b";")[0].strip().lower() in _DECODED]
    return b",".join(kept).strip() or b"identity"


def coding_of(value: bytes) -> bytes:
    """The content coding that a Content-Encoding states, in lower case; empty for none."""
    codings = [token.strip() for token in value.lower().split(b",")] if value else []
    return b",".join([token for token in codings if token != b"identity"])


def beginning_of(body: bytes, coding: bytes) -> bytes:
    """The first decoded bytes of a body, at most MAX_PART_BYTES; empty if it cannot be decoded.

    Args:
        coding: of `coding_of`.
    """
    return next(ContentDecoder(coding).feed(body), b"") if coding else body


class ContentDecoder:
    """Decodes one response."""

    __slots__ = ("_brotli", "_decoded_bytes", "_encoded_bytes", "_may_be_raw", "_zlib", "failed")

    def __init__(self, coding: bytes) -> None:
        """Decode `coding`, a value of Content-Encoding in lower case; an unknown coding fails."""
        self._zlib: Any = None
        self._brotli: Any = None
        self._may_be_raw = False
        """Whether the response may lack the header of zlib, as servers send that misread RFC 9110, section 8.4.1.2."""
        self._encoded_bytes = self._decoded_bytes = 0
        self.failed = False
        """Whether the rest of the response cannot be decoded."""
        if coding in (b"gzip", b"x-gzip", b"deflate"):
            self._zlib = zlib.decompressobj(ZLIB_WINDOW)
            self._may_be_raw = coding == b"deflate"
        elif coding == b"br":
            self._brotli = _brotli_decompressor()
        self.failed = self._zlib is None and self._brotli is None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded parts of `data`; none after a failure."""
        self._encoded_bytes += len(data)
        while not self.failed:
            try:
                part, data = self._decode(data)
            except Exception:
                # Whatever an engine sends only ends the reading: the response is forwarded as it is.
                self.failed = True
                break
            self._decoded_bytes += len(part)
            limit = min(MAX_DECODED_BYTES, FREE_BYTES + MAX_RATIO * self._encoded_bytes)
            if self._decoded_bytes > limit:
                self.failed = True
            if part:
                yield part
            elif not data:
                break

    def _decode(self, data: bytes) -> tuple[bytes, bytes]:
        """Return one decoded part, and the data that remains."""
        if self._zlib is not None:
            if self._may_be_raw and data:
                self._may_be_raw = False
                if data[0] & 0x0F != _DEFLATE_METHOD:
                    self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)
            part = self._zlib.decompress(data, MAX_PART_BYTES)
            if self._zlib.eof and self._zlib.unused_data:
                # A gzip file may have several members (RFC 1952, section 2.2).
                rest, self._zlib = self._zlib.unused_data, zlib.decompressobj(ZLIB_WINDOW)
                return part, rest
            return part, self._zlib.unconsumed_tail
        return self._brotli.process(data, output_buffer_limit=MAX_PART_BYTES), b""


def _brotli_decompressor() -> Any:
    try:
        import brotli
    except ImportError:
        return None
    return brotli.Decompressor()
