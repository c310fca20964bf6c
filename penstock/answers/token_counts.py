"""The tokens of one request."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_TOKENS: Final = 1_000_000
"""Maximum number of tokens of a prompt or answer in an estimate, because inlined images make a body large without
tokens in proportion."""


class Usage(msgspec.Struct, frozen=True):
    """The tokens of one request."""

    prompt_tokens: int
    answer_tokens: int
    cached_tokens: int = 0
    """Prompt tokens that the engine read from its cache; included in `prompt_tokens`."""
    prompt_is_known: bool = True
    """Whether the engine stated the prompt tokens, and those from the cache, if any, in a usable form."""
    answer_is_known: bool = True
    """Whether the engine stated the answer tokens in a usable form; otherwise `answer_tokens` is 0."""
