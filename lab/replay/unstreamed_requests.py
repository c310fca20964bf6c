"""Encodes requests for images and embeddings, which are not streamed, and validates their responses."""

from __future__ import annotations

import msgspec

from lab.replay.chat_request import prompt_text
from lab.replay.replay_workload import ImageSize, PlannedRequest
from lab.replay.written_request import WrittenRequest, written_request

IMAGE_PATH = b"/sdapi/v1/txt2img"
"""Path of Automatic1111's web UI."""

EMBEDDINGS_PATH = b"/v1/embeddings"
"""Path of OpenAI's API."""


class _Images(msgspec.Struct):
    images: list[str]
    """Base64."""


class _Vector(msgspec.Struct):
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]


_images = msgspec.json.Decoder(_Images)
_vectors = msgspec.json.Decoder(_Vectors)


def image_request(planned: PlannedRequest, size: ImageSize) -> WrittenRequest:
    """Encode a request for an image of `size`."""
    body = {
        "prompt": f"a lake above a gate, {planned.id}",
        "width": size.width,
        "height": size.height,
        "steps": size.steps,
        "override_settings": {"sd_model_checkpoint": planned.model},
    }
    return written_request(planned, IMAGE_PATH, "application/json", msgspec.json.encode(body))


def embedding_request(planned: PlannedRequest) -> WrittenRequest:
    """Encode a request for the embedding of a text of the planned length."""
    model, text = msgspec.json.encode(planned.model), prompt_text(planned.id, planned.lengths)
    body = b'{"model":%b,"input":"%b"}' % (model, text)
    return written_request(planned, EMBEDDINGS_PATH, "application/json", body)


def missing_image(body: bytes) -> str:
    """Return what the body of a response lacks; empty if it lacks nothing."""
    try:
        images = _images.decode(body).images
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "the answer is not that of a text-to-image service"
    return "" if images and all(images) else "the answer has no image"


def missing_embedding(body: bytes) -> str:
    """Return what the body of a response lacks; empty if it lacks nothing."""
    try:
        vectors = _vectors.decode(body).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "the answer is not that of an embedding service"
    return "" if vectors and all(vector.embedding for vector in vectors) else "the answer has no vector"
