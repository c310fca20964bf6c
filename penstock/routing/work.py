"""Values of the cost model: the inputs of a request's cost, its work, and the speed of an endpoint."""

from __future__ import annotations

import msgspec

from penstock.media.media_parts import MediaParts


class CostInputs(msgspec.Struct, frozen=True):
    """The properties of a request that determine its cost. Fields that do not apply are None."""

    body_bytes: int
    answers: bool = True
    """Whether tokens are generated; embeddings generate none."""
    max_tokens: int | None = None
    """The client's limit on the answer, in tokens."""
    count: int = 1
    """Answers or images requested at once."""
    pixels: int | None = None
    """Of one image."""
    steps: int | None = None
    """Denoising steps."""
    text_bytes: int | None = None
    """Of the text to be spoken."""
    audio_s: float | None = None
    """Duration (s) of audio that the request states."""
    elements: int | None = None
    """Elements of all input tensors."""
    media: MediaParts | None = None
    """Inline and linked images, audio and documents."""


class Work(msgspec.Struct, frozen=True):
    """The two parts of a request's work: time (s) on the reference accelerator, alone."""

    prefill_s: float
    """Until the first byte, without what caches spare. Prefills run one after the other."""
    decode_s: float
    """From the first byte to the end. The decodes of several requests run side by side."""


NO_WORK = Work(0.0, 0.0)


class Speed(msgspec.Struct, frozen=True):
    """The speed of an endpoint, by which work is multiplied."""

    start_s: float
    """Time (s) to the first byte besides prefill."""
    prefill: float
    """Time per second of reference prefill."""
    decode: float
    """Time per second of reference decode, alone."""
    crowding: float
    """Added to `decode` for each concurrent stream."""
