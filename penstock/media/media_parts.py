"""Counts the images, audio and documents in the body of a request, without decoding its JSON.

A model reads an image or audio as some hundred to some thousand tokens, regardless of the size of its base64 text. The
formats are data URLs (RFC 2397) in OpenAI's `image_url`, `input_image` and `file_data`, OpenAI's `input_audio`
(https://platform.openai.com/docs/guides/images-vision), and Anthropic's `source`
(https://docs.anthropic.com/en/docs/build-with-claude/vision). An image that is referred to by its URL counts as an
image of unknown size.

Every step searches for a fixed text, or examines a bounded part of the body a bounded number of times.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.media.media_headers import audio_seconds, pixels

MAX_PARTS: Final = 256
"""Maximum number of parts of one request that are counted."""

MAX_CANDIDATES: Final = 512
"""Maximum number of places of one request that are examined, for each kind of part."""

LARGE_BODY_BYTES: Final = 4096
"""Size (bytes) up to which the inline media of a body is negligible: only URLs of images are searched."""

MAX_MEMBERS_BYTES: Final = 256
"""Bytes before and after the data of a part, in which the other members of its JSON object are searched."""

HEADER_CHARACTERS: Final = 4096
"""Characters of base64 text that are decoded for the size of an image or the duration of audio."""

MAX_MEGAPIXELS: Final = 64.0
"""Upper bound for one image; engines scale larger ones down."""

MAX_AUDIO_S: Final = 4 * 3600.0
"""Upper bound for the audio of one part (s)."""

_DATA_URL: Final = b";base64,"
_DATA_KEY: Final = b'"data"'
_IMAGE: Final = b'"image'
_QUOTE: Final = b'"'

_SPACE: Final = rb"[ \t\r\n]*+"
_URL: Final = rb'"(?i:https?):'
_VALUE = re.compile(rb'"data"%b:%b"' % (_SPACE, _SPACE))
_MEDIA_TYPE = re.compile(rb'"(image|audio|video|application|text)/')
_AUDIO_OBJECT = re.compile(rb'"input_audio"%b:%b\{[^{}]*+\Z' % (_SPACE, _SPACE))
_URL_MEMBER: Final = rb'\{[^{}]{0,256}?"url"%b:%b' % (_SPACE, _SPACE)
_IMAGE_URL = re.compile(rb'"image_url"%b:%b(?:%b)?%b' % (_SPACE, _SPACE, _URL_MEMBER, _URL))
_IMAGE_SOURCE = re.compile(rb'"image"%b,%b"source"%b:%b%b%b' % (_SPACE, _SPACE, _SPACE, _SPACE, _URL_MEMBER, _URL))


class MediaParts(NamedTuple):
    """The media of one request."""

    images: int = 0
    megapixels: float = 0.0
    """Total area (10^6 pixels) of the images whose size could be read."""
    unsized_images: int = 0
    """Number of images whose size could not be read."""
    audio_s: float = 0.0
    """Duration (s) of all audio."""
    document_bytes: int = 0
    """Decoded size of all other media, such as PDF or video."""
    encoded_bytes: int = 0
    """Bytes of the body that are media and not text."""


def media_in(body: bytes | bytearray) -> MediaParts | None:
    """Return the media in the body of a request; None without media. No body causes an exception."""
    large = len(body) > LARGE_BODY_BYTES
    found, text = _Found(), body
    if large:
        if body.find(_DATA_URL) >= 0:
            text = _without(text, _find_data_urls(text, found))
        text = _without(text, _find_data_members(text, found))
    if text.find(_IMAGE) >= 0:
        _find_urls(text, found)
    return found.parts() if found.count else None


def _without(body: bytes | bytearray, spans: list[tuple[int, int]]) -> bytes | bytearray:
    """Return the body without some of its parts, so that large parts are searched once."""
    if not spans:
        return body
    pieces, at = [], 0
    for start, end in spans:
        pieces.append(body[at:start])
        at = end
    pieces.append(body[at:])
    return b"".join(pieces)


class _Found:
    """The parts that have been found so far."""

    __slots__ = ("audio_s", "count", "document_bytes", "encoded_bytes", "images", "megapixels", "unsized_images")

    def __init__(self) -> None:
        self.count = self.images = self.unsized_images = self.document_bytes = self.encoded_bytes = 0
        self.megapixels = self.audio_s = 0.0

    def parts(self) -> MediaParts:
        return MediaParts(
            self.images, self.megapixels, self.unsized_images, self.audio_s, self.document_bytes, self.encoded_bytes
        )

    def add(self, kind: bytes, body: bytes | bytearray, start: int, end: int) -> None:
        """Add the part whose base64 text is `body[start:end]`."""
        self.count += 1
        self.encoded_bytes += end - start
        size_bytes = (end - start) * 3 // 4
        header = bytes(body[start : min(end, start + HEADER_CHARACTERS)])
        if kind == b"image":
            area = pixels(header)
            self.add_image(None if area is None else area / 1e6)
        elif kind == b"audio":
            self.audio_s += min(MAX_AUDIO_S, audio_seconds(header, size_bytes))
        else:
            self.document_bytes += size_bytes

    def add_image(self, megapixels: float | None) -> None:
        self.images += 1
        if megapixels is None:
            self.unsized_images += 1
        else:
            self.megapixels += min(MAX_MEGAPIXELS, megapixels)


def _find_data_urls(body: bytes | bytearray, found: _Found) -> list[tuple[int, int]]:
    """Find data URLs, and return the start and end of each base64 text."""
    spans = []
    at = body.find(_DATA_URL)
    for _ in range(MAX_CANDIDATES):
        if at < 0 or found.count >= MAX_PARTS:
            break
        start = end = at + len(_DATA_URL)
        opening = body.rfind(_QUOTE, max(0, at - MAX_MEMBERS_BYTES), at)
        if opening >= 0 and body[opening + 1 : opening + 6].lower() == b"data:":
            end = _end_of_text(body, start)
            found.add(bytes(body[opening + 6 : at]).partition(b"/")[0].lower(), body, start, end)
            spans.append((start, end))
        at = body.find(_DATA_URL, end)
    return spans


def _find_data_members(body: bytes | bytearray, found: _Found) -> list[tuple[int, int]]:
    """Find base64 texts that are the member `data` of an object, and return the start and end of each text."""
    spans = []
    at = body.find(_DATA_KEY)
    for _ in range(MAX_CANDIDATES):
        if at < 0 or found.count >= MAX_PARTS:
            break
        after = at + len(_DATA_KEY)
        value = _VALUE.match(body, at)
        if value is not None and body[value.end() : value.end() + 5] != b"data:":
            end = _end_of_text(body, value.end())
            kind = _kind_of_member(body, at, end)
            if kind:
                found.add(kind, body, value.end(), end)
                spans.append((value.end(), end))
                after = end
        at = body.find(_DATA_KEY, after)
    return spans


def _end_of_text(body: bytes | bytearray, start: int) -> int:
    end = body.find(_QUOTE, start)
    return end if end >= 0 else len(body)


def _kind_of_member(body: bytes | bytearray, key_at: int, end: int) -> bytes:
    """Return the kind of the part whose member `data` begins at `key_at` and ends at `end`; empty if it is no media."""
    before = bytes(body[max(0, key_at - MAX_MEMBERS_BYTES) : key_at])
    after = bytes(body[end : end + MAX_MEMBERS_BYTES])
    if _AUDIO_OBJECT.search(before):
        return b"audio"
    members = before[before.rfind(b"{") + 1 :] + after[: max(0, after.find(b"}"))]
    media_type = _MEDIA_TYPE.search(members) if b'"base64"' in members else None
    return media_type[1] if media_type is not None else b""


def _find_urls(body: bytes | bytearray, found: _Found) -> None:
    """Find images that are given by a URL, which the engine fetches."""
    at = body.find(_IMAGE)
    for _ in range(MAX_CANDIDATES):
        if at < 0 or found.count >= MAX_PARTS:
            break
        url = _IMAGE_URL.match(body, at) or _IMAGE_SOURCE.match(body, at)
        if url is not None:
            found.count += 1
            found.add_image(None)
        at = body.find(_IMAGE, url.end() if url is not None else at + len(_IMAGE))
