"""What has to fit into the context of an engine at once: a whole body, or the longest of the prompts in it.

Embeddings, scores and completions take lists of texts or of lists of token ids. An engine processes each one alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from penstock.routes.body_fields import BodyFields
from penstock.routes.route import CostFields

TRUNCATION: Final = b'"truncat'
"""How the fields begin by which a client lets the engine shorten its prompt: `truncate_prompt_tokens` of vLLM,
`truncate` of TGI and Ollama, `truncation` of OpenAI's Responses."""

_PROMPTS: Final = (b'"', b"[")
_CONVERSATION: Final = ("/messages",)

_elements: Final = msgspec.json.Decoder(list[msgspec.Raw])


def longest_prompt_bytes(body: bytes | bytearray, cost: CostFields) -> int | None:
    """The size (bytes) of the longest of several prompts in a JSON body; None if the whole body is one prompt.

    Fields that belong together, such as the query and the documents of a rerank, are added up.

    Args:
        cost: cost fields of the route.
    """
    if not cost.prompt or (cost.generates and cost.prompt == _CONVERSATION):
        return None
    values = _reader(cost.prompt).read(body)
    if isinstance(values, str):
        return None
    sizes = [_longest(value) for value in values.values()]
    if cost.generates and not any(has_several for _, has_several in sizes):
        return None
    return sum(size_bytes for size_bytes, _ in sizes) if sizes else None


def _longest(value: Any) -> tuple[int, bool]:
    """The size (bytes) of the longest text or list in an array, and True; that of any other value, and False.

    Messages are one conversation, and numbers are the token ids of one prompt.
    """
    size_bytes = len(memoryview(value))
    try:
        elements = _elements.decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return size_bytes, False
    views = [memoryview(element) for element in elements]
    if any(bytes(view[:1]) not in _PROMPTS for view in views):
        return size_bytes, False
    return max(map(len, views), default=0), True


@lru_cache(maxsize=256)
def _reader(pointers: tuple[str, ...]) -> BodyFields:
    return BodyFields(pointers)
