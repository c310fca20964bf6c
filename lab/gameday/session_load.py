"""A fault under sessions of agents with tools: whether each turn has the answer that its engine would have given.

A session is one after the other of TURNS requests, each with all that was said before. An engine answers with a text
and a call of a tool; the next request has what the tool returned. A client whose connection to a killed entry breaks
sends the request again, to the next entry of its site, as SDKs and geo DNS do; so does one that is refused with 421,
429 or 503. A stream that ends early or times out while its entry lives is lost: Penstock must continue it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random
from typing import Any, Final

import httpx
import msgspec

from lab.demo.clients import entries_of
from lab.demo.findings import Measured
from lab.engine.completion_request import answer_length
from lab.engine.openai_format import words
from lab.engine.tool_calls import called_text
from lab.geoip import ClientSite
from lab.planet.configs import url
from lab.planet.planet import Planet
from lab.planet.topology import CHAT_8B, Topology, entry_link

SESSIONS: Final = 200

TURNS: Final = 4

THINK_S: Final = 5.0
"""Mean time (s) of a tool, between an answer and the next request."""

ANSWER_TOKENS: Final = (40, 120)
"""Minimum and maximum length (tokens) of an answer, of which half are in the call."""

LEAD_S: Final = 9.0
"""Time (s) from the first session to the fault: longer than the load before it."""

RAMP_S: Final = 10.0
"""Time (s) within which the sessions begin."""

TRIES: Final = 8

TRY_TIMEOUT_S: Final = 30.0

TOOL: Final = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


class Turn(msgspec.Struct):
    """The answer to one request, as its client received it."""

    tokens: int
    """Length that the request made the engine give to the answer."""
    text: str = ""
    arguments: str = ""
    finish_reason: str = ""
    is_done: bool = False
    """Whether the stream ended as it must."""
    output_tokens: int = 0
    """By the usage."""
    lost_entries: int = 0
    """Number of killed entries whose connection broke before or during the answer."""
    refusals: int = 0
    problem: str = ""
    """Why there is no answer."""

    def defect(self) -> str:
        """Return what is wrong with the answer; empty if it is right."""
        if self.problem or not self.is_done:
            return self.problem or "the stream ended early"
        half = self.tokens // 2
        try:
            called = called_text(self.arguments)
        except ValueError:
            return f"the arguments are no JSON object: {self.arguments[:80]}"
        if self.text + called != words(0, self.tokens) or self.text != words(0, half):
            return "the answer is not that of one engine"
        if self.finish_reason != "tool_calls" or self.output_tokens != self.tokens:
            return f"finish reason {self.finish_reason}, usage {self.output_tokens} of {self.tokens} tokens"
        return ""


class DuringSessions:
    """A fault while sessions run, which begin a moment before."""

    def __init__(
        self,
        fault: Callable[[Planet], Callable[[], None]],
        killed: Callable[[Topology], Sequence[tuple[str, str]]] = lambda _: (),
    ) -> None:
        """Prepare the fault, which `fault` injects, and which kills the agents `killed` (region, name)."""
        self._fault = fault
        self._killed = killed
        self._turns: Future[list[Turn]] | None = None

    def prepare(self, planet: Planet) -> float:
        """Begin the sessions; return the time (s) until the fault begins."""
        threads = ThreadPoolExecutor(1)
        self._turns = threads.submit(lambda: asyncio.run(_run_sessions(planet, self._killed, time.time_ns())))
        threads.shutdown(wait=False)
        return LEAD_S

    def inject(self, planet: Planet) -> Callable[[], None]:
        """Inject the fault."""
        return self._fault(planet)

    def conclude(self) -> Measured:
        """Wait for the end of the sessions; return the number of right answers, 0 if one is missing or wrong."""
        assert self._turns is not None
        return judge_sessions(self._turns.result())


def judge_sessions(turns: Sequence[Turn]) -> Measured:
    """Return the number of turns, 0 if one of SESSIONS times TURNS is missing or wrong."""
    defects = [defect for turn in turns if (defect := turn.defect())]
    missing = SESSIONS * TURNS - len(turns)
    repeated, refusals = sum(turn.lost_entries > 0 for turn in turns), sum(turn.refusals for turn in turns)
    says = (
        f"{len(turns) - len(defects)} of {SESSIONS * TURNS} turns of {SESSIONS} sessions with tools have the answer of "
        f"one engine, {repeated} of them after the loss of their entry; {refusals} refusals that were repeated; "
        f"{len(defects) + missing} lost"
    )
    if defects:
        says += f"; the first: {defects[0]}"
    return Measured(0 if defects or missing else len(turns), says)


class SessionClient:
    """A client of the fleet."""

    def __init__(self, http: httpx.AsyncClient, killed: frozenset[str]) -> None:
        """Send by `http`; `killed` are the URLs of the entries that the fault kills."""
        self._http = http
        self._killed = killed

    async def ask(self, entries: Sequence[str], headers: dict[str, str], body: dict[str, Any], turn: Turn) -> Turn:
        """Send a request, again after a refusal or the loss of a killed entry, and return the answer."""
        for attempt in range(TRIES):
            answer = Turn(turn.tokens, lost_entries=turn.lost_entries, refusals=turn.refusals)
            entry = entries[attempt % len(entries)]
            path = f"{entry}/v1/chat/completions"
            try:
                async with self._http.stream("POST", path, headers=headers, json=body) as response:
                    if response.status_code == 200:
                        async for line in response.aiter_lines():
                            _read(line, answer)
                        return answer
                    text = (await response.aread()).decode(errors="replace")
                    answer.problem = f"{response.status_code} {text[:200]}"
            except httpx.TransportError as error:
                answer.problem = f"{entry}: {error!r}"
                if entry not in self._killed:
                    return answer
                turn.lost_entries += 1
                continue
            except ValueError as error:
                answer.problem = f"no event: {error}"
                return answer
            if response.status_code not in (421, 429, 503):
                return answer
            turn.refusals += 1
            await asyncio.sleep(float(response.headers.get("retry-after", 1)))
        return answer


async def _run_sessions(
    planet: Planet, killed: Callable[[Topology], Sequence[tuple[str, str]]], seed: int
) -> list[Turn]:
    rng, topology, ports = Random(seed), planet.topology, planet.ports
    entries = {name: [entry.url for entry in of_site] for name, of_site in entries_of(topology, ports).items()}
    sites = list(topology.sites)
    links = [entry_link(site.name, region, agent) for site in sites for region, agent in killed(topology)]
    # A connection for each request: a pool may close an idle one while it gives it to a request.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(limits=limits, timeout=TRY_TIMEOUT_S) as http:
        client = SessionClient(http, frozenset(url(ports[link]) for link in links))
        sessions = [
            _run_session(client, site, entries[site.name], f"session-{seed}-{number}", Random(rng.random()))
            for number, site in enumerate(rng.choices(sites, [site.share for site in sites], k=SESSIONS))
        ]
        return [turn for turns in await asyncio.gather(*sessions) for turn in turns]


async def _run_session(
    client: SessionClient, site: ClientSite, entries: Sequence[str], name: str, rng: Random
) -> list[Turn]:
    headers = {"authorization": "Bearer demo-open", "x-forwarded-for": site.address(rng), "x-session-id": name}
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You look things up."}]
    turns: list[Turn] = []
    await asyncio.sleep(rng.uniform(0.0, RAMP_S))
    for number in range(TURNS):
        turn = Turn(rng.randint(*ANSWER_TOKENS))
        asked = f"{name}, turn {number}{answer_length(turn.tokens)}"
        if turns:
            call = {"id": f"call-{number}", "type": "function"}
            call_of = {**call, "function": {"name": "look_up", "arguments": turns[-1].arguments}}
            messages.append({"role": "assistant", "content": turns[-1].text, "tool_calls": [call_of]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": asked})
        else:
            messages.append({"role": "user", "content": asked})
        body = {
            "model": CHAT_8B,
            "messages": messages,
            "tools": [TOOL],
            "tool_choice": "auto",
            "max_tokens": 2 * ANSWER_TOKENS[1],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        turns.append(await client.ask(entries, headers, body, turn))
        if turns[-1].defect():
            break
        await asyncio.sleep(rng.expovariate(1.0 / THINK_S))
    return turns


def _read(line: str, answer: Turn) -> None:
    """Read one line of a stream into the answer."""
    if not line.startswith("data: "):
        return
    if line == "data: [DONE]":
        answer.is_done = True
        return
    event = msgspec.json.decode(line[6:])
    if "error" in event:
        answer.problem = str(event["error"])[:200]
    if event.get("usage"):
        answer.output_tokens = event["usage"]["completion_tokens"]
    for choice in event.get("choices", ()):
        delta = choice["delta"]
        answer.text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            answer.arguments += call["function"].get("arguments") or ""
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
