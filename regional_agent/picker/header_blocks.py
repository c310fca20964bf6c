"""Header blocks of HPACK: the paths of received requests, and the heads and trailers of responses.

The library hpack decodes. Envoy begins every call with the same block once its dynamic table has the values, so that
the path of a block is kept as long as no other block has changed the table. What is sent has no reference to a dynamic
table, and needs no state.

Source: https://www.rfc-editor.org/rfc/rfc7541
"""

from __future__ import annotations

from typing import Any, Final

from hpack import Decoder
from hpack.exceptions import HPACKError

from regional_agent.picker.http2_frames import COMPRESSION_ERROR, Http2Error

MAX_HEADER_LIST_BYTES: Final = 16 * 1024

MAX_KEPT_BLOCKS: Final = 16
"""Maximum number of blocks whose paths are kept; a client of the picker calls two methods."""

MAX_KEPT_BLOCK_BYTES: Final = 256
"""Maximum size of such a block: those of Envoy refer to the table, and are shorter."""

_PATH: Final = b":path"
_STATUS_200: Final = b"\x88"
_CONTENT_TYPE: Final = b"\x0f\x10"
"""`content-type` with a value that is not added to the table."""

_LITERAL: Final = b"\x00"
_TABLE_SIZE_UPDATE: Final = 0x20
_INDEXED_LITERAL: Final = 0x40
_MAX_PREFIX: Final = 127


class HeaderBlocks:
    """Decodes the header blocks of one connection."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_HEADER_LIST_BYTES)
        self._paths: dict[bytes, bytes] = {}
        """The paths of blocks that neither change the table nor were decoded with another one."""

    def path_of(self, block: bytes) -> bytes:
        """Return `:path` of a block, empty without one; raises Http2Error for a block that is not HPACK."""
        known = self._paths.get(block)
        if known is not None:
            return known
        # Any: mypyc would copy each entry, and entries are compared by identity.
        entries: Any = self._decoder.header_table.dynamic_entries
        count = len(entries)
        newest: Any = entries[0] if count else None
        try:
            headers = list(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise Http2Error(COMPRESSION_ERROR, f"a header block cannot be decoded: {error}") from None
        path = b""
        for name, value in headers:
            if name == _PATH:
                path = bytes(value)
                break
        # An added entry becomes the first one; a smaller table has fewer entries.
        is_same = len(entries) == count and (not count or entries[0] is newest)
        if not is_same or (block and _TABLE_SIZE_UPDATE <= block[0] < _INDEXED_LITERAL):
            self._paths.clear()
        elif len(self._paths) < MAX_KEPT_BLOCKS and len(block) <= MAX_KEPT_BLOCK_BYTES:
            self._paths[block] = path
        return path

    @property
    def kept(self) -> int:
        """Number of blocks whose paths are kept."""
        return len(self._paths)


def head_block() -> bytes:
    """Return the block of a response's head."""
    return _STATUS_200 + _CONTENT_TYPE + _string(b"application/grpc")


def trailers_block(status: int, detail: str) -> bytes:
    """Return the block of trailers with a status of gRPC."""
    block = _LITERAL + _string(b"grpc-status") + _string(b"%d" % status)
    if detail:
        block += _LITERAL + _string(b"grpc-message") + _string(_percent_encoded(detail))
    return block


def _string(value: bytes) -> bytes:
    """Return a string literal without Huffman coding (section 5.2)."""
    size = len(value)
    if size < _MAX_PREFIX:
        return bytes([size]) + value
    encoded, size = bytearray([_MAX_PREFIX]), size - _MAX_PREFIX
    while size >= 128:
        encoded.append(size & 0x7F | 0x80)
        size >>= 7
    encoded.append(size)
    return bytes(encoded) + value


def _percent_encoded(text: str) -> bytes:
    """Encode the message of a status, as gRPC requires."""
    kept = [char if " " <= char <= "~" and char != "%" else "?" for char in text]
    return "".join(kept).encode()
