"""Media are counted without decoding the body, as a walk through its JSON would count them."""

import base64
import json
import struct
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.media.media_parts import MAX_PARTS, MediaParts, media_in

LARGE_BODY_BYTES = 4096
"""As documented, and not imported: a test fails if a tuned constant changes."""

FILLER = "x" * LARGE_BODY_BYTES


def png(width: int, height: int, size_bytes: int = 3000) -> str:
    header = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", width, height, 8, 2, 0, 0, 0)
    return base64.b64encode(header + bytes(size_bytes)).decode()


def jpeg(width: int, height: int) -> str:
    start = b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + bytes(14)
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)
    return base64.b64encode(start + frame + bytes(3000)).decode()


def wav(seconds: float, bytes_per_s: int = 32_000) -> str:
    size = int(seconds * bytes_per_s)
    header = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", size, b"WAVE", b"fmt ", 16, 1, 1, 16_000, bytes_per_s, 2, 16)
    return base64.b64encode(header + bytes(size - len(header))).decode()


def body_of(*content: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": [*content]}], **fields}).encode()


TEXT = {"type": "text", "text": FILLER}


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(800, 500)}"}}, (1, 0.4)),
        (
            {"type": "image_url", "image_url": {"detail": "low", "url": f"data:image/jpeg;base64,{jpeg(640, 480)}"}},
            (1, 0.3072),
        ),
        ({"type": "input_image", "image_url": f"data:image/PNG;base64,{png(1000, 1000)}"}, (1, 1.0)),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": png(10, 100_000)}},
            (1, 1.0),
        ),
        ({"type": "image", "source": {"data": png(2000, 1000), "media_type": "image/png", "type": "base64"}}, (1, 2.0)),
        ({"type": "image_url", "image_url": {"url": f"data:image/webp;base64,{'UklG' * 1000}"}}, (1, 0.0)),
        ({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}, (1, 0.0)),
        ({"type": "image_url", "image_url": {"detail": "high", "url": "HTTP://example.org/a.png"}}, (1, 0.0)),
        ({"type": "input_image", "image_url": "https://example.org/a.png"}, (1, 0.0)),
        ({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}, (1, 0.0)),
    ],
)
def test_an_image_counts_with_its_area(part: dict[str, Any], expected: tuple[int, float]) -> None:
    media = media_in(body_of(part, TEXT))
    assert media is not None
    assert (media.images, media.megapixels) == (expected[0], pytest.approx(expected[1]))
    assert media.unsized_images == (0 if expected[1] else 1)
    assert (media.audio_s, media.document_bytes) == (0.0, 0)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": wav(3.0), "format": "wav"}},
        {"type": "input_audio", "input_audio": {"format": "wav", "data": wav(3.0)}},
        {"type": "audio_url", "audio_url": {"url": f"data:audio/wav;base64,{wav(3.0)}"}},
    ],
)
def test_audio_counts_by_its_seconds(part: dict[str, Any]) -> None:
    media = media_in(body_of(part, TEXT))
    assert media is not None
    assert (media.images, media.audio_s, media.document_bytes) == (0, pytest.approx(3.0, rel=0.01), 0)


def test_compressed_audio_and_documents_count_by_their_size() -> None:
    data = base64.b64encode(bytes(160_000)).decode()
    media = media_in(
        body_of(
            {"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": data}},
            {"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{data}"},
        )
    )
    assert media is not None
    assert (media.audio_s, media.document_bytes) == (pytest.approx(10.0, rel=0.01), pytest.approx(320_000, rel=0.01))
    assert media.encoded_bytes == 3 * len(data)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        body_of({"type": "text", "text": "hello"}),
        body_of(TEXT),
        body_of({"type": "text", "text": 'an "image" ;base64, in a text ' + FILLER}),
        body_of({"type": "tool_result", "data": FILLER}),
        body_of({"type": "text", "text": 'the field "data": ' + FILLER}, data="x"),
    ],
)
def test_text_is_no_media(body: bytes) -> None:
    assert media_in(body) is None


def test_a_remote_image_of_a_short_request_counts() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    assert media_in(body_of(part)) == MediaParts(images=1, unsized_images=1)


def test_parts_are_limited() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    media = media_in(body_of(*[part] * 1000))
    assert media is not None
    assert media.images == MAX_PARTS


MARKERS = [
    b'"data"',
    b";base64,",
    b'"data:image/png;base64,',
    b'"image_url"',
    b'"image"',
    b'"base64"',
    b'"',
    b"{",
    b":",
]


@given(st.lists(st.sampled_from(MARKERS) | st.binary(max_size=40), max_size=60), st.booleans())
def test_no_bytes_raise(pieces: list[bytes], large: bool) -> None:
    body = b"".join(pieces) + (FILLER.encode() if large else b"")
    for form in (body, bytearray(body)):
        media = media_in(form)
        assert media is None or 0 <= media.encoded_bytes <= len(body)


data = st.binary(min_size=0, max_size=300).map(lambda raw: base64.b64encode(zlib.compress(raw) * 30).decode())
texts = st.text(max_size=50)
parts = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, texts),
    st.builds(lambda d: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{d}"}}, data),
    st.builds(lambda d: {"type": "input_image", "image_url": f"data:image/jpeg;base64,{d}"}, data),
    st.builds(lambda d: {"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": d}}, data),
    st.builds(lambda d: {"type": "input_audio", "input_audio": {"data": d, "format": "mp3"}}, data),
    st.builds(lambda d: {"type": "input_file", "file_data": f"data:application/pdf;base64,{d}"}, data),
    st.just({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}),
    st.just({"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}),
)


def walk(value: Any) -> tuple[int, int, int]:
    """Images, other media, and characters of base64 text in a JSON value."""
    if isinstance(value, list):
        counts = [walk(item) for item in value]
    elif not isinstance(value, dict):
        return 0, 0, 0
    else:
        counts = [walk(item) for item in value.values()]
        texts = [item for item in value.values() if isinstance(item, str)]
        inline = [text for text in texts if text.startswith("data:")]
        if value.get("type") == "base64" or "format" in value:
            inline.append(f"data:{value.get('media_type', 'audio/mp3')};base64,{value['data']}")
        for text in inline:
            image = text.startswith("data:image/")
            counts.append((int(image), int(not image), len(text.partition(";base64,")[2])))
        if any(text.startswith("https:") for text in texts):
            counts.append((1, 0, 0))
    return tuple(sum(column) for column in zip((0, 0, 0), *counts, strict=True))  # type: ignore[return-value]


@given(st.lists(parts, max_size=12), st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]), st.booleans())
def test_counts_agree_with_a_walk_through_the_json(
    content: list[Any], separators: tuple[str, str], escape: bool
) -> None:
    request = {"messages": [{"role": "system", "content": FILLER}, {"role": "user", "content": content}]}
    body = json.dumps(request, separators=separators, ensure_ascii=escape).encode()
    images, others, characters = walk(request)
    media = media_in(body)

    assert (media is None) == (images + others == 0)
    if media is not None:
        assert (media.images, media.encoded_bytes) == (images, characters)
        assert (media.audio_s + media.document_bytes > 0) == (others > 0)
