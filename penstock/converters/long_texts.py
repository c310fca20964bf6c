"""Texts of a JSON document that are cut out before it is decoded, as images in base64, which have megabytes.

Decoded and encoded with the rest, they would occupy an event loop for seconds. Here they are found by their quotation
marks, stay as they came, and are decoded in pieces.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

MIN_LONG_BYTES: Final = 64 * 1024
"""Size (bytes) from which a text is long."""

PIECE_BYTES: Final = 256 * 1024
"""Size (bytes) of the part of a text in base64 that is decoded at once: in some ms."""

MAX_REST_BYTES: Final = 8 * 1024 * 1024
"""Maximum size (bytes) of a document beside its long texts, which is decoded and encoded at once: in some 10 ms."""

MAX_QUOTES: Final = 400_000
"""Maximum number of quotation marks of a document, as of one with 200,000 names and texts."""

MAX_BACKSLASHES: Final = 1024
"""Maximum number of backslashes before a quotation mark."""


class BadText(Exception):
    """A document is too large beside its long texts, or a text is not base64. The message says which."""


def without_long_texts(
    document: bytes, name: str, min_bytes: int = MIN_LONG_BYTES
) -> tuple[bytes, dict[str, memoryview]]:
    """Return a JSON document with a short text in place of each long one, and the long ones by these; raises BadText.

    Args:
        name: letters and digits with which the short texts begin: random, so that the document has none.
        min_bytes: size (bytes) from which a text is long.
    """
    if document.count(b'"') > MAX_QUOTES:
        raise BadText(f"it has more than {MAX_QUOTES} quotation marks")
    view, pieces, texts = memoryview(document), list[memoryview | bytes](), dict[str, memoryview]()
    kept = 0
    start = document.find(b'"') + 1
    while start:
        end = _end_of_text(document, start)
        if end - start >= min_bytes and end < len(document):
            short = f"{name}-{len(texts)}"
            texts[short] = view[start:end]
            pieces += view[kept:start], short.encode()
            kept = end
        start = document.find(b'"', end + 1) + 1
    if len(document) - sum(map(len, texts.values())) > MAX_REST_BYTES:
        message = f"it has more than {MAX_REST_BYTES} bytes beside its texts of {min_bytes} bytes or more"
        raise BadText(f"{message}: send images by URL, or fewer short texts")
    return b"".join((*pieces, view[kept:])), texts


def with_long_texts(document: bytes, name: str, texts: Mapping[str, memoryview]) -> bytes:
    """Return a document with its long texts in place of the short ones that it still has."""
    if not texts:
        return document
    # A pattern that begins with fixed characters is found 20 times as fast as one that looks behind.
    pieces = re.split(b'(")(%b-[0-9]+)(")' % name.encode(), document)
    return b"".join(texts[piece.decode()] if number % 4 == 2 else piece for number, piece in enumerate(pieces))


def base64_pieces(text: memoryview) -> Iterator[bytes]:
    """Decode a text in base64, whose characters may be escaped, in pieces; raises BadText."""
    left, escape, is_padded = b"", b"", False
    for start in range(0, len(text), PIECE_BYTES):
        piece = escape + bytes(text[start : start + PIECE_BYTES])
        # The other characters of an escape, such as \u003d, are in the next piece.
        last = piece.rfind(b"\\", -5)
        cut = last if last >= 0 and piece[last + 1 : last + 2] in (b"", b"u") else len(piece)
        whole, escape = left + _unescaped(piece[:cut]), piece[cut:]
        used = len(whole) - len(whole) % 4
        left = whole[used:]
        if is_padded and whole:
            raise BadText("it is not base64")
        is_padded |= whole.endswith(b"=", 0, used)
        try:
            yield binascii.a2b_base64(whole[:used], strict_mode=True)
        except binascii.Error:
            raise BadText("it is not base64") from None
    if left or escape:
        raise BadText("it is not base64")


def base64_of(content: bytes) -> Iterator[bytes]:
    """Encode bytes in base64 in pieces."""
    size = PIECE_BYTES // 4 * 3
    for start in range(0, len(content), size):
        yield binascii.b2a_base64(content[start : start + size], newline=False)


def _unescaped(piece: bytes) -> bytes:
    """Return a part of a text without escapes; raises BadText."""
    if b"\\" not in piece:
        return piece
    try:
        return msgspec.json.decode(b'"%b"' % piece, type=str).encode()
    except (msgspec.DecodeError, UnicodeDecodeError, UnicodeEncodeError, RecursionError):
        raise BadText("it is not base64") from None


def _end_of_text(document: bytes, start: int) -> int:
    """Return the position of the quotation mark at the end of a text, or of the end of the document; raises BadText."""
    end = document.find(b'"', start)
    while end >= 0 and document[end - 1] == 0x5C:
        before = document[max(start, end - MAX_BACKSLASHES) : end]
        backslashes = len(before) - len(before.rstrip(b"\\"))
        if backslashes == MAX_BACKSLASHES:
            raise BadText(f"it has {MAX_BACKSLASHES} backslashes in a row")
        if backslashes % 2 == 0:
            break
        end = document.find(b'"', end + 1)
    return end if end >= 0 else len(document)
