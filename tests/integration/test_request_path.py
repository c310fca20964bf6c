"""The page ARCHITECTURE.md on the path of a request, compared with one warm streamed chat of a real agent."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from regional_agent.proxy import exchange
from tests.support.agents import running_agent
from tests.support.chats import BODY, SSE_HEAD, chunk
from tests.support.paths import ROOT
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post

MAX_FILES_NAMED = 25
MAX_STOPS, MAX_RETURNS = 49, 22
"""Limits of the walk through the agent's files. A stop is a change of the file whose functions are called; a return is
a stop in a file that the walk has left before."""

PACKAGES = ("regional_agent/", "penstock/", "adapters/")
TASKS = "regional_agent/background_tasks.py"

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


class Call(NamedTuple):
    file: str
    function: str


class Recorder:
    """Records the calls of the project's functions in one thread, without those of periodic tasks."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._stack: list[str] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            name = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
            self._stack.append(name)
            if name.startswith(PACKAGES) and TASKS not in self._stack:
                self.calls.append(Call(name, frame.f_code.co_name))
        elif event == "return" and self._stack:
            self._stack.pop()


async def streamed_chat(directory: Path) -> list[Call]:
    """The calls for the second chat on a connection whose answer arrives in three reads."""
    received = asyncio.Event()

    async def streams(e: ScriptedEngine, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        for part in (SSE_HEAD + chunk(WORD), chunk(WORD), chunk(END + USAGE + DONE) + b"0\r\n\r\n"):
            received.clear()
            writer.write(part)
            await received.wait()

    async def chat(client: RawClient) -> None:
        client.send(post(BODY))
        await client.head()
        while await client.chunk():
            received.set()
        received.set()

    recorder = Recorder()
    async with engine(streams) as gpu, running_agent(directory, [gpu.address]) as agent:
        client = await RawClient.connect(agent.traffic)
        for _ in range(2):
            await chat(client)
        before: Callable[..., Any] | None = sys.getprofile()
        sys.setprofile(recorder)
        try:
            await chat(client)
        finally:
            sys.setprofile(before)
        client.close()
    return recorder.calls


def stops_of(calls: list[Call]) -> list[str]:
    """The agent's files in the order of calls, each once for calls in a row."""
    files = [call.file for call in calls if call.file.startswith("regional_agent/")]
    return [file for at, file in enumerate(files) if at == 0 or files[at - 1] != file]


@pytest.mark.skipif(not exchange.__file__.endswith(".py"), reason="a profiler does not see compiled functions")
async def test_the_page_names_the_path_of_a_request(tmp_path: Path) -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    section = page.partition("\n## The path of a request\n")[2].partition("\n## ")[0]
    table, _, below = section.partition("\n\nA warm")
    named = re.findall(r"`((?:penstock|regional_agent)/[\w/]+\.py)`", table)
    folders = set(re.findall(r"`((?:penstock|regional_agent)/[\w/]+)`", below.partition("\n\n")[0]))
    assert 15 < len(named) <= MAX_FILES_NAMED
    calls = await streamed_chat(tmp_path)
    visited = list(dict.fromkeys(call.file for call in calls if call.function != "__init__"))
    assert [file for file in visited if file in named] == named, "the order of the first calls"
    others = {call.file.rpartition("/")[0] for call in calls} - {file.rpartition("/")[0] for file in named}
    assert others == folders, "the page names the packages that are called on the way"

    stops = stops_of(calls)
    returns = len(stops) - len(set(stops))
    assert len(stops) <= MAX_STOPS, stops
    assert returns <= MAX_RETURNS, stops
