"""Sessions of agents with tools survive the loss of an engine, an agent and a region, and each token counts once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from penstock.ledger.ledger_record import RecordKind
from regional_agent.upstream.address import Address
from tests.integration.test_ledger_records import ledger_in, records_in
from tests.support.agents import Agent, running_agent
from tests.support.chats import SSE_HEAD, chunk
from tests.support.planet import MODEL, plan
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

SESSIONS, TURNS = 200, 2
PROMPT_TOKENS = 9
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]


def answer_of(session: str, turn: int) -> tuple[list[str], list[str]]:
    """The tokens of the text, and of the arguments of each of two calls, that a turn of a session has."""
    return [f" {session}", " looks", " up", f" {turn}", " things", "."], ['{"turn":', f" {turn}", "}"]


TOKENS = 6 + 2 * (1 + 3)


class Killable:
    """Engines that write a text and two calls, as vLLM does, until they are killed."""

    def __init__(self) -> None:
        self.is_dead = False
        self.writers: set[asyncio.StreamWriter] = set()
        self.sent = 0

    async def serve(self, e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        body = json.loads(received.body)
        if self.is_dead:
            writer.transport.abort()
            return
        self.writers.add(writer)
        try:
            writer.write(SSE_HEAD)
            for event in events_of(body, len(e.requests)):
                writer.write(chunk(b"data: %b\n\n" % json.dumps(event).encode()))
                self.sent += 1
                await asyncio.sleep(0.001)
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        finally:
            self.writers.discard(writer)

    def kill(self) -> None:
        self.is_dead = True
        for writer in self.writers:
            writer.transport.abort()


def events_of(body: dict[str, Any], number: int) -> list[dict[str, Any]]:
    asked = [message for message in body["messages"] if message["role"] == "user"]
    session, turn = asked[-1]["content"].split()
    text, arguments = answer_of(session, int(turn))
    written = body["messages"][-1]["content"] if body.get("continue_final_message") else ""
    start = next(at for at in range(len(text) + 1) if "".join(text[:at]) == written)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": word} for word in text[start:])]
    for index in range(2):
        function = {"name": "look_up", "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": f"c-{index}", "type": "function", "function": function}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in arguments]
    deltas.append({})
    events = []
    for at, delta in enumerate(deltas):
        generated = min(at, len(deltas) - 2)
        choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}
        used = {"prompt_tokens": PROMPT_TOKENS + start, "completion_tokens": generated}
        used["total_tokens"] = sum(used.values())
        same = {
            "id": f"a-{number}",
            "created": number,
            "model": MODEL,
            "usage": used | {"completion_tokens": generated},
        }
        events.append(same | {"choices": [choice]})
    return [*events, events[-1] | {"choices": []}]


async def session(origin: Agent, name: str) -> None:
    """Run the turns of a session; fails unless each answer is whole, and has each call and each token once."""
    client = await RawClient.connect(origin.traffic)
    messages: list[dict[str, Any]] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"{name} {turn}"})
        body = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "tools": TOOLS}
        client.send(post(json.dumps(body | {"messages": messages}).encode(), f"X-Session-Id: {name}"))
        status, _ = await client.head()
        received = b""
        while part := await client.chunk():
            received += part
        assert status == 200, received
        text, calls, used = read(received)
        words, arguments = answer_of(name, turn)
        assert (text, calls) == ("".join(words), ["".join(arguments)] * 2)
        assert used == {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS, "total_tokens": 9 + TOKENS}
        messages.append({"role": "assistant", "content": text, "tool_calls": []})
        messages.append({"role": "tool", "content": "found"})
    client.close()


def read(stream: bytes) -> tuple[str, list[str], dict[str, int]]:
    *events, rest = stream.decode().split("\n\n")
    assert (rest, events[-1]) == ("", "data: [DONE]"), stream
    chunks = [json.loads(each.removeprefix("data: ")) for each in events[:-1] if not each.startswith(":")]
    assert len({each["id"] for each in chunks}) == 1
    choices = [choice for each in chunks for choice in each["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["tool_calls"]
    calls: list[str] = []
    for part in (part for choice in choices for part in choice["delta"].get("tool_calls", ())):
        calls += [""] if "id" in part else []
        calls[part["index"]] += part["function"]["arguments"]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, calls, chunks[-1]["usage"]


async def test_agent_sessions_survive_the_loss_of_an_engine_an_agent_and_a_region(tmp_path: Path) -> None:
    shares = plan("eu-de", "eu-de+eu-es+us-east", eu_de=0.2, eu_es=0.4, us_east=0.4)
    engines = {region: [Killable(), Killable()] for region in ("eu-de", "eu-es", "us-east")}
    async with AsyncExitStack() as stack:
        places: dict[str, list[Address]] = {region: [] for region in engines}
        for region, each in engines.items():
            for one in each:
                places[region].append((await stack.enter_async_context(engine(one.serve))).address)

        async def agent(region: str, **options: Any) -> Agent:
            folder, wide = tmp_path / region, {"slots": 300, "queue": 300}
            ledger = ledger_in(folder, region)
            running = running_agent(folder, places[region], region=region, ledger=ledger, **wide, **options)
            found = await stack.enter_async_context(running)
            found.continue_streams()
            return found

        spain = await agent("eu-es", anonymous=None)
        america = await agent("us-east", anonymous=None)
        peers = {"eu-es": spain.peer, "us-east": america.peer}
        origin = await agent("eu-de", plan=shares, peers=peers)

        async def kill_engine() -> None:
            engines["us-east"][0].kill()

        async def kill_agent() -> None:
            origin.peers.addresses.pop("eu-es")
            spain.peer_listener.stop_accepting()
            await spain.peer_listener.drain(0.0)

        async def kill_region() -> None:
            engines["us-east"][1].kill()
            origin.peers.addresses.pop("us-east")
            america.peer_listener.stop_accepting()
            await america.peer_listener.drain(0.0)

        def sent() -> int:
            return sum(one.sent for each in engines.values() for one in each)

        async def at(events: int, what: Callable[[], Awaitable[None]]) -> None:
            await until(lambda: sent() >= events)
            await what()

        whole = SESSIONS * TURNS * (TOKENS + 3)
        parts = (0.1, kill_engine), (0.35, kill_agent), (0.6, kill_region)
        kills = [at(round(part * whole), what) for part, what in parts]
        await asyncio.gather(*kills, *(session(origin, f"s{number}") for number in range(SESSIONS)))
        for each in (origin, spain, america):
            await until(lambda each=each: each.held() == each.waiting() == sum(each.proxy.in_flight().values()) == 0)
        assert origin.counted() == {"ok": SESSIONS * TURNS}
        assert origin.continued().keys() == {"resumed"}
        assert origin.continued()["resumed"] > 3
    ends = [record for record in records_in(tmp_path / "eu-de") if record.kind == RecordKind.REQUEST]
    assert len(ends) == len({record.request_id for record in ends}) == SESSIONS * TURNS
    assert sum(record.output_tokens for record in ends) == SESSIONS * TURNS * TOKENS
    assert sum(record.input_tokens for record in ends) == SESSIONS * TURNS * PROMPT_TOKENS
