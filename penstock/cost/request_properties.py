"""What of a request determines its cost."""

from __future__ import annotations

import msgspec

from penstock.media.media_parts import MediaParts


class CostInputs(msgspec.Struct, frozen=True):
    """The properties of a request that determine its cost. Fields that do not apply are None."""

    body_bytes: int
    answers: bool = True
    """Whether tokens are generated; embeddings generate none."""
    uses_tokens: bool = True
    """Whether the request uses tokens at all; a request that counts the tokens of a prompt uses none."""
    max_tokens: int | None = None
    """The client's limit on the answer, in tokens."""
    count: int = 1
    """Number of answers or images requested at once."""
    offers_tools: bool = False
    """Whether the model may call tools. An engine may hold back a call until it is complete."""
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
