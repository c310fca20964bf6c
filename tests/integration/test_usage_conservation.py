"""Tokens are conserved: what agents meter equals their access logs, and what the engines' witness logs recorded.

A trace is replayed through the agents of two regions, while engines are killed, clients leave, attempts are repeated at
other engines, and requests are forwarded.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx
from msgspec.structs import replace

from adapters.servers.etcd import EtcdServer
from lab.traces.generate import generate
from lab.traces.trace import TraceRequest
from lab.witness import Findings, Generated
from penstock.accounts.outcome_rules import RULES, Outcome
from penstock.policy.kinds.models import Cost, CostUnit, Model
from regional_agent.upstream.address import Address
from tests.support.agent_processes import AgentProcess, agents_in, publish
from tests.support.engines import EngineProcess, running_engines
from tests.support.planet import MODEL, policy
from tests.support.sockets import RawClient, post
from tests.support.wait import PATIENCE_S, until_async

HOME, ABROAD = "eu-de", "eu-es"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MAX_PROMPT_CHARS, MAX_OUTPUT_TOKENS = 2400, 80
ENDLESS_TOKENS = 6000
"""Output of a request that is under way until something ends it: 36 s on an engine at the speed of its hardware."""
FAST, SLOW_BY = 200, 200
TOKEN = re.compile(rb'"(?:content|text)":"[^"]')
"""Occurs once in each event of the engines that has a token."""


class Ended(NamedTuple):
    """One response, as its client saw it."""

    status: int
    region: str
    endpoint: str
    tokens: int
    """Events with output that the client received."""


MAX_WAITING = 120
"""Maximum number of requests that wait at slow engines; the engines have slots for more."""


class Fleet:
    """The processes of two regions, and the requests that were sent to the agent of the first."""

    def __init__(self, agents: Mapping[str, AgentProcess], engines: Mapping[str, EngineProcess]) -> None:
        self.agents, self.engines = agents, engines
        self.traffic = agents[HOME].faces()["traffic"]
        self.sent: set[str] = set()

    async def send(self, name: str, path: str, body: dict[str, Any]) -> RawClient:
        self.sent.add(name)
        client = await RawClient.connect(self.traffic)
        client.send(post(json.dumps({"model": MODEL, **body}).encode(), f"x-request-id: {name}", path=path))
        return client

    async def ask(self, name: str, path: str, body: dict[str, Any], leaves_after: int | None = None) -> Ended:
        """Send a request and read its response, or leave after a number of tokens."""
        client = await self.send(name, path, body)
        status, headers = await client.head()
        tokens = 0
        if "content-length" in headers:
            await client.reader.readexactly(int(headers["content-length"]))
        else:
            while part := await client.chunk():
                tokens += len(TOKEN.findall(part))
                if leaves_after is not None and tokens >= leaves_after:
                    break
        client.close()
        return Ended(status, headers.get("x-penstock-region", ""), headers.get("x-penstock-endpoint", ""), tokens)

    async def set_faults(self, faults: dict[str, Any], *urls: str) -> None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as client:
            for url in urls:
                (await client.post(f"{url}/lab/faults", json=faults)).raise_for_status()

    def urls(self, *names: str) -> list[str]:
        return [url for name in names for url in self.engines[name].urls.values()]

    def witness(self) -> list[Findings]:
        return [engine.findings() for engine in self.engines.values()]

    def generated(self) -> dict[str, list[Generated]]:
        found: dict[str, list[Generated]] = {}
        for findings in self.witness():
            for name, records in findings.generated.items():
                found.setdefault(name, []).extend(records)
        return found

    def lines(self, region: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in access_log(self.agents[region].log_path.parent).read_bytes().splitlines()]

    def metric(self, region: str, name: str, labels: str = "") -> float:
        text = self.agents[region].ask("/metrics").text
        return sum(
            float(value) for value in re.findall(rf"^{name}\{{[^}}]*{labels}[^}}]*\}} (\S+)$", text, re.MULTILINE)
        )


def access_log(directory: Path) -> Path:
    return directory / "access.log"


def requests(trace: list[TraceRequest]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Chats and text completions, streamed with and without usage, and whole."""
    for number, entry in enumerate(trace):
        text = f"{number} " + "word " * min(MAX_PROMPT_CHARS // 5, entry.prompt_tokens)
        body: dict[str, Any] = {"max_tokens": min(MAX_OUTPUT_TOKENS, entry.output_tokens), "ignore_eos": True}
        if number % 4:
            body["stream"] = True
        if number % 4 == 1:
            body["stream_options"] = {"include_usage": True}
        if number % 3:
            yield f"chat-{number}", CHAT, {**body, "messages": [{"role": "user", "content": text}]}
        else:
            yield f"text-{number}", TEXT, {**body, "prompt": text}


def endless(*, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": "go on"}]
    return {"messages": messages, "stream": stream, "max_tokens": ENDLESS_TOKENS, "ignore_eos": True}


async def replay(fleet: Fleet, trace: list[TraceRequest], first: int) -> None:
    room = asyncio.Semaphore(12)

    async def one(name: str, path: str, body: dict[str, Any]) -> Ended:
        async with room:
            return await fleet.ask(f"{name}-{first}", path, body)

    assert {ended.status for ended in await asyncio.gather(*(one(*request) for request in requests(trace)))} == {200}


async def kill_while_serving(fleet: Fleet, doomed: str, *others: str) -> None:
    """Kill the engines of one process in the middle of a stream, and before the response of a whole answer."""
    # All engines are slow, so that requests are spread over all of them and none ends by itself.
    await fleet.set_faults({"slow": SLOW_BY}, *fleet.urls(doomed, *others))
    waiting: list[asyncio.Task[Ended]] = []

    async def is_at_doomed() -> bool:
        if any(name.startswith("whole-") for name in fleet.engines[doomed].findings().started):
            return True
        # On a busy machine, the first of them take long to arrive.
        for _ in range(4 if len(waiting) < MAX_WAITING else 0):
            waiting.append(asyncio.create_task(fleet.ask(f"whole-{len(waiting)}", CHAT, endless(stream=False))))
        return False

    await until_async(is_at_doomed)
    names = {f"gpu-{number}" for number in range(len(fleet.engines[doomed].urls))}
    victim, elsewhere = None, []
    # The streams stay open, so that the endpoint that is preferred first is not preferred for all of them.
    while victim is None:
        client = await fleet.send(f"stream-{len(elsewhere)}", CHAT, endless(stream=True))
        _, headers = await client.head()
        if headers["x-penstock-region"] == HOME and headers["x-penstock-endpoint"] in names:
            victim = client
        else:
            elsewhere.append(client)
    while b'"content":"' not in await victim.chunk():
        pass
    fleet.engines[doomed].kill()
    await fleet.set_faults({}, *fleet.urls(*others))
    last = b""
    while part := await victim.chunk():
        last = part
    assert b'"error"' in last
    for client in (victim, *elsewhere):
        client.close()
    assert {ended.status for ended in await asyncio.gather(*waiting)} == {200}


async def leave(fleet: Fleet, *slow: str) -> dict[str, int]:
    """Leave in the middle of streams; returns the tokens that each client had received."""
    await fleet.set_faults({"slow": SLOW_BY}, *fleet.urls(*slow))
    names = [f"left-{number}" for number in range(8)]
    left = await asyncio.gather(
        *(fleet.ask(name, CHAT, endless(stream=True), leaves_after=2 + n) for n, name in enumerate(names))
    )

    async def all_aborted() -> bool:
        return fleet.generated().keys() >= set(names)

    await until_async(all_aborted)
    await fleet.set_faults({}, *fleet.urls(*slow))
    return {name: ended.tokens for name, ended in zip(names, left, strict=True)}


async def test_what_is_metered_is_what_the_engines_generated(tmp_path: Path, own_etcd: EtcdServer) -> None:
    trace = generate(60.0, Random(4))[:120]
    priced = Model(MODEL, cost=Cost(CostUnit.TOKEN, 0.0001, 0.01))
    in_force = replace(policy(), anonymous_tenant="open", models={MODEL: priced})
    await publish(own_etcd, in_force, shares={HOME: {HOME: 0.7, ABROAD: 0.3}})
    async with AsyncExitStack() as stack:
        inner = stack.enter_context(ExitStack())
        engines = {}
        # One engine alone is killed: a request that reaches two of them in that moment is ended after both.
        for name, region, count in (("doomed", HOME, 1), ("lasting", HOME, 2), ("abroad", ABROAD, 1)):
            (tmp_path / name).mkdir()
            specs = [{"name": f"{name}-{n}", "time_scale": FAST} for n in range(count)]
            engines[name] = inner.enter_context(running_engines(tmp_path / name, *specs, region=region))
        serving = {HOME: ("doomed", "lasting"), ABROAD: ("abroad",)}
        addresses = {
            region: [Address.parse(url) for name in names for url in engines[name].urls.values()]
            for region, names in serving.items()
        }
        settings = {region: {"ACCESS_LOG_FILE": str(access_log(tmp_path / region))} for region in serving}
        agents = await stack.enter_async_context(
            agents_in(tmp_path, own_etcd, addresses, dict.fromkeys(serving, 64), settings)
        )
        fleet = Fleet(agents, engines)
        await until_async(lambda: peer_is_healthy(agents[HOME]))

        await replay(fleet, trace[:60], 1)
        await kill_while_serving(fleet, "doomed", "lasting", "abroad")
        await replay(fleet, trace[60:], 2)
        left = await leave(fleet, "lasting", "abroad")

        await until_async(lambda: is_idle(fleet))
        check(fleet, left)


async def peer_is_healthy(agent: AgentProcess) -> bool:
    status = await asyncio.to_thread(agent.status)
    return bool(status["peers"][ABROAD]["state"] == "healthy")


async def is_idle(fleet: Fleet) -> bool:
    """Whether all counters have returned to zero, and all lines are written."""
    for agent in fleet.agents.values():
        status = await asyncio.to_thread(agent.status)
        held = any(endpoint["in_flight"] for endpoint in status["endpoints"])
        if status["in_flight"] or held or any(status["waiting"].values()):
            return False
    home = fleet.lines(HOME)
    forwarded = [line for line in home if line["server"] == ABROAD]
    return {line["request_id"] for line in home} == fleet.sent and len(fleet.lines(ABROAD)) >= len(forwarded)


def check(fleet: Fleet, left: dict[str, int]) -> None:
    home, abroad = fleet.lines(HOME), fleet.lines(ABROAD)
    assert sorted(line["request_id"] for line in home) == sorted(fleet.sent), "one line for each request"
    forwarded = {line["request_id"]: line for line in home if line["server"] == ABROAD}
    assert sorted(line["request_id"] for line in abroad) == sorted(forwarded), "one more where it was served"
    assert forwarded

    # Metered = the lines of the requests that the region served and that are their tenant's.
    for region, lines in ((HOME, home), (ABROAD, abroad)):
        charged = [
            line for line in lines if line["server"] == region and RULES[Outcome(line["outcome"])].charges_tenant
        ]
        for kind in ("input", "output"):
            metered = fleet.metric(region, f"penstock_agent_{kind}_tokens_total")
            assert metered == sum(line.get(f"{kind}_tokens", 0) for line in charged), (region, kind)
        estimated = fleet.metric(region, "penstock_agent_estimated_usage_total")
        assert estimated == sum(line.get("usage_estimated", False) for line in charged)

    generated = fleet.generated()
    outcomes = {line["request_id"]: line["outcome"] for line in home}
    for line in (*home, *abroad):
        name, records = line["request_id"], generated.get(line["request_id"], [])
        if line["outcome"] == "ok":
            assert not line.get("usage_estimated"), name
            (finished,) = {(r.prompt_tokens, r.output_tokens) for r in records if r.event == "finished"}
            assert (line["input_tokens"], line["output_tokens"]) == finished, name
        elif line["outcome"] == "client_left":
            assert line["usage_estimated"], name
            if name in left:
                (aborted,) = records
                assert left[name] <= line["output_tokens"] <= aborted.output_tokens < ENDLESS_TOKENS
    assert {outcomes[name] for name in left} == {"client_left"}

    # Each kind of failure has occurred, and none of it is a tenant's.
    assert "engine_cut" in outcomes.values()
    for name, outcome in outcomes.items():
        assert outcome in ("ok", "client_left", "engine_cut"), name
    assert fleet.metric(HOME, "penstock_agent_retries_total") > 0
    assert fleet.metric(HOME, "penstock_agent_overhead_gpu_seconds_total") > 0
    started = sum((findings.started for findings in fleet.witness()), Counter[str]())
    assert any(count > 1 for count in started.values()), "attempts that another engine repeated"
