"""Reads any bytes as the messages of a gRPC inference.

Property: a problem or one model, the same however the bytes are divided, in bounded memory.
"""

from __future__ import annotations

from penstock.routes.kserve_messages import MAX_NAME_BYTES, InferMessages

MAX_KEPT_BYTES = MAX_NAME_BYTES + 64


def check(data: bytes) -> None:
    """Raise if the result depends on the division of the bytes, or a request without one model has no problem."""
    results = set()
    for step in (1, 13, max(1, len(data))):
        messages, problem = InferMessages(), ""
        for at in range(0, len(data), step):
            problem = problem or messages.feed(data[at : at + step])
            assert problem or step > 13 or messages.kept_bytes <= MAX_KEPT_BYTES
        problem = problem or messages.finish()
        assert problem or messages.is_named
        results.add((bool(problem), None if problem else (messages.model, messages.version)))
    assert len(results) == 1, results
