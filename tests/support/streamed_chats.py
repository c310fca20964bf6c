"""Scripted engines that stream chats word by word and fail during the stream; and a strict parser of streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from lab.engine.completion_request import BadRequest, parse_completion
from lab.engine.openai_format import DONE, CompletionFormat, error_body, usage, words
from tests.support.agents import Agent
from tests.support.chats import SSE_HEAD, ask, chunk
from tests.support.planet import MODEL
from tests.support.sockets import Answer, ReceivedRequest, Script, ScriptedEngine

WORDS = 30
CHAT = {
    "model": MODEL,
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [{"role": "user", "content": "Why does the water flow?"}],
    "max_tokens": WORDS,
    "ignore_eos": True,
}
"""A request for a response of WORDS words."""

Failure = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def dies(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def hangs(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def reports_an_error(writer: asyncio.StreamWriter) -> None:
    error = b"data: " + error_body(500, "InternalServerError", "EngineCore encountered an issue") + b"\n\n"
    writer.write(chunk(b"\n\n" + error) + chunk(DONE) + b"0\r\n\r\n")


async def ends(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")


def finishes_with(reason: str) -> Failure:
    """A failure: the engine ends the answer in order, with a finish reason, its usage and [DONE], as on SIGTERM."""

    async def failure(writer: asyncio.StreamWriter) -> None:
        same = {"id": "chatcmpl-answer-1", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
        choice = {"index": 0, "delta": {"content": ""}, "text": "", "finish_reason": reason}
        used = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        for event in ({**same, "choices": [choice]}, {**same, "choices": [], "usage": used}):
            writer.write(chunk(b"data: " + json.dumps(event).encode() + b"\n\n"))
        writer.write(chunk(DONE) + b"0\r\n\r\n")

    return failure


def streams_chat(number: int, limit: int | None = None, failure: Failure = dies, *, in_event: bool = True) -> Script:
    """The script of an engine that streams words as the fake engine does, and fails after `limit` words.

    Args:
        in_event: whether the engine fails within an event.
    """

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        chat = received.head.startswith(b"POST /v1/chat/completions ")
        try:
            request = parse_completion(chat, received.body, MODEL, 10_000, None)  # type: ignore[arg-type]
        except BadRequest as error:
            body = error_body(error.status, error.error_type, str(error))
            writer.write(b"HTTP/1.1 %d Bad\r\nContent-Length: %d\r\n\r\n%b" % (error.status, len(body), body))
            return
        counted = request.prompt_tokens if request.continuous_usage else None
        form = CompletionFormat(chat, f"answer-{number}", number, MODEL, request.first_word, counted)
        writer.write(SSE_HEAD)
        if chat:
            writer.write(chunk(form.role_event()))
        for word in range(request.output_tokens):
            if word == limit:
                event = form.token_events(word, 1, None)
                writer.write(chunk(event[: len(event) // 2]) if in_event else b"")
                await writer.drain()
                await asyncio.sleep(0.01)
                await failure(writer)
                return
            writer.write(chunk(form.token_events(word, 1, "length" if word == request.output_tokens - 1 else None)))
            await writer.drain()
        used = (
            form.usage_event(usage(request.prompt_tokens, request.output_tokens, 0)) if request.include_usage else b""
        )
        writer.write(chunk(used + DONE) + b"0\r\n\r\n")

    return script


def in_turn(*scripts: Script) -> Script:
    """A script for several engines that runs the next of `scripts` for each request, in order of arrival."""
    left = list(scripts)

    async def script(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await left.pop(0)(e, received, writer)

    return script


class Stream(NamedTuple):
    """A stream, as parsed by a strict client."""

    text: str
    finish_reason: str | None
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    done: bool


def read_stream(body: bytes) -> Stream:
    """Parse the stream of one chat or text completion; fails on several ids or roles."""
    *events, rest = body.decode().split("\n\n")
    assert rest == ""
    done = events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in (events[:-1] if done else events)]
    error = chunks.pop()["error"] if "error" in chunks[-1] else None
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert [number for number, choice in enumerate(choices) if "role" in choice.get("delta", ())] in ([0], [])
    text = "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)
    reasons = [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]
    assert len(reasons) <= 1
    used = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
    return Stream(text, reasons[0] if reasons else None, used[-1] if used else None, error, done)


def is_complete(body: bytes, number_of_words: int = WORDS) -> bool:
    """Whether a stream is complete; fails otherwise."""
    stream = read_stream(body)
    assert (stream.error, stream.done, stream.finish_reason) == (None, True, "length")
    assert stream.text == words(0, number_of_words)
    if stream.usage is not None:
        assert stream.usage["completion_tokens"] == number_of_words
        assert stream.usage["total_tokens"] == number_of_words + stream.usage["prompt_tokens"]
    return True


async def chat(agent: Agent, **fields: Any) -> Answer:
    """Send CHAT with other fields and return the response."""
    return await ask(agent, body=json.dumps(CHAT | fields).encode())
