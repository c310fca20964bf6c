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
    """Number of answers or images requested at once."""
    pixels: int | None = None
    """Pixels of one image."""
    steps: int | None = None
    """Denoising steps."""
    text_bytes: int | None = None
    """Size (bytes) of the text to be spoken."""
    audio_s: float | None = None
    """Duration (s) of audio that the request states."""
    elements: int | None = None
    """Number of elements of all input tensors."""
    media: MediaParts | None = None
    """Inline and linked images, audio and documents."""


class Work(msgspec.Struct, frozen=True):
    """The two parts of a request's work: time (s) on the reference accelerator, without other requests."""

    prefill_s: float
    """Time (s) until the first byte. Prefills of several requests run one after the other. An estimate covers the whole
    prompt; `actual_work` covers only the tokens that no cache spared."""
    decode_s: float
    """Time (s) from the first byte to the end. The decodes of several requests run concurrently."""


NO_WORK = Work(0.0, 0.0)


class Speed(msgspec.Struct, frozen=True):
    """The speed of an endpoint, as factors that convert work to time on the endpoint."""

    start_s: float
    """Time (s) to the first byte besides prefill."""
    prefill: float
    """Time (s) on the endpoint per second of reference prefill."""
    decode: float
    """Time (s) on the endpoint per second of reference decode, without `crowding`."""
    crowding: float
    """Time (s) added to `decode` for each stream on the endpoint, including the request's own stream."""
