"""The judgement of sessions that ran during a fault: every missing or wrong turn leaves none to count."""

from __future__ import annotations

import asyncio

import httpx
import msgspec
import pytest

from lab.engine.openai_format import words
from lab.engine.tool_calls import CLOSING, OPENING
from lab.gameday.session_load import SESSIONS, TRIES, TURNS, SessionClient, Turn, judge_sessions

TOKENS = 41
GOOD = Turn(
    TOKENS,
    text=words(0, 20),
    arguments=OPENING + words(20, 21) + CLOSING,
    finish_reason="tool_calls",
    is_done=True,
    output_tokens=TOKENS,
)
ALL = [GOOD] * (SESSIONS * TURNS)


def test_right_turns_are_counted() -> None:
    found = judge_sessions(ALL)
    assert found.events == SESSIONS * TURNS
    assert "; 0 lost" in found.says


@pytest.mark.parametrize(
    "broken",
    [
        {"is_done": False},
        {"text": words(0, 19)},
        {"text": words(0, 20) + words(20, 1)},
        {"arguments": OPENING + words(20, 21)},
        {"arguments": OPENING + words(19, 22) + CLOSING},
        {"arguments": ""},
        {"finish_reason": "stop"},
        {"output_tokens": TOKENS + 1},
        {"problem": "502"},
    ],
)
def test_a_wrong_turn_leaves_nothing_to_count(broken: dict[str, object]) -> None:
    turns = [*ALL[1:], msgspec.structs.replace(GOOD, **broken)]
    assert judge_sessions(turns).events == 0


def test_a_session_that_ended_early_leaves_nothing_to_count() -> None:
    assert judge_sessions(ALL[1:]).events == 0


def test_repeated_requests_are_stated() -> None:
    found = judge_sessions([*ALL[1:], msgspec.structs.replace(GOOD, lost_entries=2, refusals=3)])
    assert found.events == SESSIONS * TURNS
    assert "1 of them after the loss of their entry; 3 refusals that were repeated" in found.says


ANSWER = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'


@pytest.mark.parametrize("how", ["cut", "within a line", "refused"])
async def test_a_stream_that_a_living_entry_breaks_is_lost(how: str) -> None:
    asked = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        if how == "refused":
            writer.write(b"HTTP/1.1 503 x\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n")
        else:
            length = len(ANSWER) - 20 if how == "within a line" else 1000
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % length + ANSWER[:length])
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    entry = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, httpx.AsyncClient() as http:
        answer = await SessionClient(http, frozenset()).ask([entry], {}, {}, Turn(TOKENS))
        assert answer.defect()
        assert asked == (TRIES if how == "refused" else 1)
        if how == "cut":
            killed = await SessionClient(http, frozenset({entry})).ask([entry], {}, {}, Turn(TOKENS))
            assert (killed.lost_entries, asked) == (TRIES - 1, 1 + TRIES)
