"""A request's body taken whole by a middleware, and given once more to what comes after it."""

from __future__ import annotations

from starlette.types import Message, Receive


async def read(receive: Receive) -> bytes | None:
    """The whole body, whose size is bounded by who gives it; None where the client has gone."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def given(body: bytes, receive: Receive) -> Receive:
    """The body once more, then whatever else the client says."""
    done = False

    async def again() -> Message:
        nonlocal done
        if done:
            return await receive()
        done = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
