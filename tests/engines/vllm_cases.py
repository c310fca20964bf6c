"""Cases of two vLLM servers behind an agent."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.engines.region import ADAPTER, CONTINUED, MODEL, SERVE_TIMEOUT_S, Region, within
from tests.engines.servers import START_TIMEOUT_S, VLLM_CONTEXT, VLLM_RUNS, vllm_server
from tests.engines.suite import NotOffered, case, expect

SUBJECT = "vllm"
NAMES = ("vllm-1", "vllm-2")
SLOTS = VLLM_RUNS + 2
"""More than vLLM runs, so that requests wait in it and its signals show them."""
LONG = 1500
"""Tokens of a response that lasts for many seconds."""
CANCELLED_WITHIN_S = 1.0


async def start(region: Region) -> None:
    """Start both servers, at the same time, and put them behind the agent."""
    directory = region.directory / "vllm"
    directory.mkdir(exist_ok=True)
    installed = region.installed["vllm"]
    servers = [vllm_server(installed, directory, name, (MODEL, CONTINUED), ADAPTER) for name in NAMES]
    for server in servers:
        region.servers[server.name] = server
        await asyncio.to_thread(server.start)
    for server in servers:
        await asyncio.to_thread(server.wait_ready, START_TIMEOUT_S)
        models, events = [MODEL, CONTINUED, ADAPTER], {"kv_events_port": server.kv_events_port}
        await region.add(server.name, server, server.url, models, slots=SLOTS, engine="auto", **events)


def chat_body(tokens: int, **fields: object) -> dict[str, Any]:
    """A chat request whose response has exactly `tokens` tokens, the same in each call."""
    messages = [{"role": "user", "content": "Tell me about rivers."}]
    body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return body | fields


async def chat(region: Region, tokens: int = 16, **fields: object) -> httpx.Response:
    """Send a chat request to the agent."""
    return await region.http.post(f"{region.url}/v1/chat/completions", json=chat_body(tokens, **fields))


@asynccontextmanager
async def stream(
    region: Region, tokens: int, **fields: object
) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[str]]]:
    """A streamed chat: the response, and the data of its events as they arrive."""
    body = chat_body(tokens, stream=True, **fields)
    async with region.http.stream("POST", f"{region.url}/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        yield response, (line.removeprefix("data: ") async for line in lines if line.startswith("data: "))


async def streamed(region: Region, tokens: int, **fields: object) -> list[str]:
    """The data of all events of a streamed chat."""
    async with stream(region, tokens, **fields) as (response, events):
        expect(response.status_code == 200, f"the stream began with {response.status_code}")
        return [event async for event in events]


def text_of(events: list[str]) -> str:
    """The text of the events of a chat."""
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


async def gauge(region: Region, server: str, *names: str) -> float:
    """Sum of the series of metrics on the page of an engine."""
    page = (await region.http.get(f"{region.urls[server]}/metrics")).text
    series = re.findall(rf"^(?:{'|'.join(names)})(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, series))


async def running(region: Region) -> float:
    """Requests that the engines run or hold, as they report."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    return sum(await asyncio.gather(*(gauge(region, server, *names) for server in NAMES if server in region.servers)))


async def engines_idle(region: Region) -> bool:
    """Whether the engines report that they run nothing."""
    return not await running(region)


@case(SUBJECT)
async def whole_chat(region: Region) -> None:
    """A chat response that is not streamed has the engine's text and usage, and names region and endpoint."""
    answer = await chat(region, 20)
    expect(answer.status_code == 200, f"{answer.status_code}: {answer.text}")
    found = answer.json()
    expect(len(found["choices"][0]["message"]["content"]) == 20, f"the text is {found['choices'][0]}")
    expect(found["usage"]["completion_tokens"] == 20, f"the usage is {found['usage']}")
    expect(answer.headers.get("x-penstock-endpoint") in NAMES, f"the headers are {dict(answer.headers)}")


@case(SUBJECT)
async def kv_events(region: Region) -> None:
    """The agent reads from KV events what the cache holds; a prompt returns to it, and a reset empties it."""

    async def events(name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await region.endpoint(name))["kv_events"]
        return found

    messages = [{"role": "user", "content": "The river flows to the sea. " * 60}]
    first = await chat(region, 2, messages=messages)
    holder = first.headers["x-penstock-endpoint"]
    filled = await within(30.0, lambda: _has_blocks(events, holder))
    shown = await events(holder)
    expect(filled and shown["prefixes"] == "exact" and shown["complete"], f"the status is {shown}")
    again = [(await chat(region, 2, messages=messages)).headers["x-penstock-endpoint"] for _ in range(4)]
    expect(again == [holder] * 4, f"the prompt is cached at {holder} and went to {again}")
    reset = await region.http.post(f"{region.urls[holder]}/reset_prefix_cache")
    expect(reset.status_code == 200, f"{reset.status_code}: {reset.text}")
    # vLLM publishes the reset with the events of its next pass.
    await asyncio.gather(*(chat(region, 2) for _ in range(2 * VLLM_RUNS)))
    emptied = await within(30.0, lambda: _has_removed(events, holder))
    expect(emptied, f"after the reset the status is {await events(holder)}")


async def _has_blocks(events: Callable[[str], Awaitable[dict[str, Any]]], name: str) -> bool:
    return bool((await events(name))["blocks"])


async def _has_removed(events: Callable[[str], Awaitable[dict[str, Any]]], name: str) -> bool:
    return bool((await events(name))["removed"])


@case(SUBJECT)
async def streamed_chat(region: Region) -> None:
    """A streamed chat arrives in parts, with the text of one that is not streamed, usage and [DONE]."""
    whole = (await chat(region, 300)).json()["choices"][0]["message"]["content"]
    began = time.monotonic()
    first_at = 0.0
    events = []
    async with stream(region, 300, stream_options={"include_usage": True}) as (response, data):
        async for event in data:
            first_at = first_at or time.monotonic() - began
            events.append(event)
    took = time.monotonic() - began
    expect(response.headers["content-type"].startswith("text/event-stream"), f"{response.headers['content-type']}")
    expect(events[-1] == "[DONE]", f"the stream ends with {events[-1]}")
    expect(text_of(events) == whole, f"the streamed text is {text_of(events)!r}, the whole one {whole!r}")
    expect(json.loads(events[-2])["usage"]["completion_tokens"] == 300, f"the last chunk is {events[-2]}")
    expect(first_at < took / 2, f"the first event came after {first_at:.2f} of {took:.2f} s")


@case(SUBJECT)
async def plain_completion(region: Region) -> None:
    """The older completions API works, streamed and whole."""
    body = {"model": MODEL, "prompt": "Rivers", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    url = f"{region.url}/v1/completions"
    whole = (await region.http.post(url, json=body)).json()["choices"][0]["text"]
    lines = (await region.http.post(url, json={**body, "stream": True})).text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    text = "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])
    expect(len(whole) == 12 and text == whole, f"streamed {text!r}, whole {whole!r}")
    expect(events[-1] == "[DONE]", f"the stream ends with {events[-1]}")


@case(SUBJECT)
async def responses(region: Region) -> None:
    """The Responses API works, streamed and whole; an incomplete response is not an error."""
    body = {"model": MODEL, "input": "Rivers", "max_output_tokens": 12, "temperature": 0}
    answer = await region.http.post(f"{region.url}/v1/responses", json=body)
    expect(answer.status_code == 200, f"{answer.status_code}: {answer.text}")
    text = answer.json()["output"][0]["content"][0]["text"]
    expect(len(text) == 12, f"the output is {answer.json()['output']}")
    events = (await region.http.post(f"{region.url}/v1/responses", json={**body, "stream": True})).text
    expect("event: response.completed\n" in events, f"the stream ends with {events[-300:]}")
    deltas = re.findall(r"^data: (.*response\.output_text\.delta.*)$", events, re.MULTILINE)
    expect("".join(json.loads(delta)["delta"] for delta in deltas) == text, "the streamed text differs")


@case(SUBJECT)
async def stored_response(region: Region) -> None:
    """A stored response is read from the endpoint that has it."""
    body = {"model": MODEL, "input": "Rivers", "max_output_tokens": 4, "store": True}
    created = [(await region.http.post(f"{region.url}/v1/responses", json=body)).json()["id"] for _ in range(4)]
    answers = [await region.http.get(f"{region.url}/v1/responses/{response}") for response in created]
    statuses = [answer.status_code for answer in answers]
    direct = [(await region.http.get(f"{region.urls[name]}/v1/responses/{created[0]}")).status_code for name in NAMES]
    expect(200 in direct, f"the engines answer {direct}")
    expect(statuses == [200] * 4, f"the agent answered {statuses}: {answers[-1].text[:300]}")


@case(SUBJECT)
async def messages(region: Region) -> None:
    """Anthropic's Messages API works through the agent, streamed and whole, with its own format of errors."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Rivers"}], "max_tokens": 12, "temperature": 0}
    url = f"{region.url}/v1/messages"
    answer = await region.http.post(url, json=body)
    if answer.status_code == 404:
        raise NotOffered("the agent has no route /v1/messages")
    expect(answer.status_code == 200, f"{answer.status_code}: {answer.text}")
    text = answer.json()["content"][0]["text"]
    expect(len(text) == 12, f"the text is {text!r}")
    events = (await region.http.post(url, json={**body, "stream": True})).text
    deltas = re.findall(r'^data: (.*"text_delta".*)$', events, re.MULTILINE)
    expect("".join(json.loads(delta)["delta"]["text"] for delta in deltas) == text, "the streamed text differs")
    expect("event: message_stop" in events, f"the stream ends with {events[-200:]}")
    count = await region.http.post(f"{url}/count_tokens", json={key: body[key] for key in ("model", "messages")})
    expect(count.status_code == 200 and count.json()["input_tokens"] > 0, f"count_tokens: {count.text}")
    unknown = await region.http.post(url, json={**body, "model": "unknown"})
    expect(unknown.status_code == 404 and unknown.json().get("type") == "error", f"unknown model: {unknown.text}")


@case(SUBJECT)
async def models_list(region: Region) -> None:
    """GET /v1/models lists the model and its adapter."""
    answer = await region.http.get(f"{region.url}/v1/models")
    expect(answer.status_code == 200, f"{answer.status_code}: {answer.text}")
    ids = {model["id"] for model in answer.json()["data"]}
    expect({MODEL, ADAPTER} <= ids, f"it lists {ids}")


@case(SUBJECT)
async def errors_of_the_engine(region: Region) -> None:
    """Errors of the engine reach the client with their status and body, and eject no endpoint. A request that fits in
    the context of none is refused by the agent."""
    too_long = await chat(region, max_tokens=VLLM_CONTEXT * 2)
    code = too_long.json()["error"]["code"]
    expect((too_long.status_code, code) == (400, "context_length_exceeded"), f"too long for all: {too_long.text}")
    rejected: list[dict[str, Any]] = [{"messages": []}, {"temperature": -1}, {"max_tokens": 0}]
    for fields in rejected:
        through = await chat(region, **fields)
        direct = await region.http.post(f"{region.urls[NAMES[0]]}/v1/chat/completions", json=chat_body(16) | fields)
        expect(direct.status_code == 400, f"vLLM answers {fields} with {direct.status_code}")
        expect(through.status_code == 400, f"the agent answers {fields} with {through.status_code}: {through.text}")
        expect(through.json() == direct.json(), f"{fields}: {through.text} in place of {direct.text}")
    for _ in range(10):
        await chat(region, messages=[])
    expect(all([await region.serves(name) for name in NAMES]), "an endpoint was ejected for a client's errors")


@case(SUBJECT)
async def both_serve(region: Region) -> None:
    """Requests at once are spread over both servers, and none is lost or counted afterwards."""
    answers = await asyncio.gather(*(chat(region, 30) for _ in range(24)))
    expect({answer.status_code for answer in answers} == {200}, f"{sorted(answer.status_code for answer in answers)}")
    served = [answer.headers["x-penstock-endpoint"] for answer in answers]
    expect(min(map(served.count, NAMES)) >= 6, f"{[(name, served.count(name)) for name in NAMES]}")
    texts = {answer.json()["choices"][0]["message"]["content"] for answer in answers}
    expect(len(texts) == 1, f"the same request had {len(texts)} different answers")


@case(SUBJECT)
async def signals(region: Region) -> None:
    """The agent detects vLLM, and reads running requests, queue and KV cache from its metrics."""
    more = SLOTS - VLLM_RUNS
    requests = [asyncio.ensure_future(chat(region, 600)) for _ in range(len(NAMES) * SLOTS)]
    seen: dict[str, float] = {}

    async def all_seen() -> bool:
        for name in NAMES:
            shown = await region.endpoint(name)
            expect(shown["engine"] == "vllm", f"{name} is taken for {shown['engine']}")
            for signal, reading in shown["signals"].items():
                seen[signal] = max(seen.get(signal, 0.0), reading["value"])
        return seen.get("running", 0) >= VLLM_RUNS and seen.get("queued", 0) >= more and seen.get("kv_used", 0) > 0

    holds = await within(20.0, all_seen)
    answers = await asyncio.gather(*requests)
    expect(holds, f"the largest readings were {seen}")
    failed = [f"{answer.status_code} {answer.text[:200]}" for answer in answers if answer.status_code != 200]
    expect(not failed, f"{len(failed)} requests failed: {failed[:1]}")


@case(SUBJECT)
async def cancelled_stream(region: Region) -> None:
    """A client that leaves a stream leaves the engine idle within 1 s."""
    expect(await within(10.0, lambda: engines_idle(region)), "the engines were not idle before")
    async with stream(region, LONG) as (response, events):
        expect(response.status_code == 200, f"{response.status_code}")
        for _ in range(5):
            await anext(events)
        expect(await within(2.0, lambda: running(region)), "no engine reports the stream")
    left = time.monotonic()
    idle = await within(CANCELLED_WITHIN_S, lambda: engines_idle(region))
    expect(idle, f"after {time.monotonic() - left:.2f} s the engines still report {await running(region)} requests")


@case(SUBJECT)
async def cancelled_whole_response(region: Region) -> None:
    """A client that cancels a response that is not streamed leaves the engine idle within 1 s."""
    request = asyncio.ensure_future(chat(region, LONG))
    expect(await within(5.0, lambda: running(region)), "no engine reports the request")
    request.cancel()
    await asyncio.wait([request])
    idle = await within(CANCELLED_WITHIN_S, lambda: engines_idle(region))
    expect(idle, f"after {CANCELLED_WITHIN_S:g} s the engines still report {await running(region)} requests")


@case(SUBJECT)
async def cancelled_while_waiting(region: Region) -> None:
    """Clients that leave while their requests wait in the agent's queue and in the engines leave nothing behind."""
    requests = [asyncio.ensure_future(chat(region, LONG)) for _ in range(len(NAMES) * SLOTS + 6)]
    await asyncio.sleep(1.0)
    for request in requests:
        request.cancel()
    await asyncio.wait(requests)
    idle = await within(2 * CANCELLED_WITHIN_S, lambda: engines_idle(region))
    expect(idle, f"the engines still report {await running(region)} requests")


@case(SUBJECT)
async def connections_that_the_engine_closes(region: Region) -> None:
    """Requests are served that reuse a connection just as vLLM closes it, after 5 s without a request."""
    statuses: list[int] = []
    for idle_s in (4.97, 4.99, 5.01, 5.03):
        for pause_s in (0.0, idle_s):
            await asyncio.sleep(pause_s)
            answers = await asyncio.gather(*(chat(region, 2) for _ in range(len(NAMES) * SLOTS)))
            statuses += [answer.status_code for answer in answers]
    expect(set(statuses) == {200}, f"the statuses were {statuses}")


@case(SUBJECT)
async def lora_adapter(region: Region) -> None:
    """The LoRA adapter is a model of its own name, and answers otherwise than its base model."""
    base, adapted = await chat(region, 20), await chat(region, 20, model=ADAPTER)
    expect(adapted.status_code == 200, f"{adapted.status_code}: {adapted.text}")
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in (base, adapted)]
    expect(texts[0] != texts[1], f"both answer {texts[0]!r}")
    expect(adapted.json()["model"] == ADAPTER, f"the response names the model {adapted.json()['model']}")


@case(SUBJECT)
async def prefix_stays_with_its_engine(region: Region) -> None:
    """The turns of a conversation go to one endpoint, whose KV cache has its prefix."""
    turns = [{"role": "user", "content": "A river is long. " * 60}]
    served, cached = [], []
    for _ in range(4):
        answer = await chat(region, 10, messages=turns)
        found = answer.json()
        served.append(answer.headers["x-penstock-endpoint"])
        cached.append((found["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
        turns += [found["choices"][0]["message"] | {"role": "assistant"}, {"role": "user", "content": "And then?"}]
    expect(len(set(served)) == 1, f"the turns were served by {served}")
    expect(min(cached[1:]) > 500, f"cached tokens: {cached}")


@case(SUBJECT)
async def metrics_agree(region: Region) -> None:
    """The agent counts as many served requests as the engines, and exports the engines' signals."""

    async def finished() -> float:
        return sum([await gauge(region, name, "vllm:request_success_total") for name in NAMES])

    async def page() -> str:
        return (await asyncio.to_thread(region.agent.ask, "/metrics")).text

    async def served() -> float:
        found = re.findall(r'^penstock_agent_requests_total{[^}]*outcome="ok"[^}]*} (\S+)$', await page(), re.MULTILINE)
        return sum(map(float, found))

    before = await finished(), await served()
    await asyncio.gather(*(chat(region, 25) for _ in range(8)), streamed(region, 25))
    after = await finished(), await served()
    expect(after[0] - before[0] == 9, f"the engines finished {after[0] - before[0]} of 9 requests")
    expect(after[1] - before[1] == 9, f"the agent counted {after[1] - before[1]} of 9 requests")
    for signal in ("running", "queued", "kv_used"):
        pattern = rf'^penstock_agent_engine_signal{{endpoint="vllm-1",signal="{signal}"}} \S+$'
        expect(re.search(pattern, await page(), re.MULTILINE), f"the agent exports no signal {signal}")


@case(SUBJECT)
async def killed_mid_stream(region: Region) -> None:
    """kill -9 of an engine mid-stream ends its streams with an error event, and the other engine serves on."""
    async with stream(region, LONG) as (response, events):
        victim = response.headers["x-penstock-endpoint"]
        received = [await anext(events) for _ in range(10)]
        region.servers[victim].kill()
        received += [event async for event in events]
    last = json.loads(received[-1]) if received[-1] != "[DONE]" else {}
    expect("error" in last, f"the stream ended with {received[-1]}")
    expect(last["error"].get("code"), f"the error event has no code: {last}")
    answers = [await chat(region, 4) for _ in range(6)]
    expect(
        [answer.status_code for answer in answers] == [200] * 6, f"then {[answer.status_code for answer in answers]}"
    )
    await restart(region, victim)


@case(SUBJECT)
async def continued_after_kill(region: Region) -> None:
    """After kill -9 of an engine, the other one continues its streams: the text is that of one undisturbed."""
    exact = {"include_usage": True, "continuous_usage_stats": True}
    undisturbed = await streamed(region, LONG, model=CONTINUED, stream_options=exact)
    wanted = text_of(undisturbed)
    streams = [KilledStream(options) for options in (exact, exact, {"include_usage": True}, None)]
    tasks = [asyncio.ensure_future(killed.receive(region)) for killed in streams]
    under_way = await within(60.0, lambda: _all_have(streams, 100))
    victim = streams[0].endpoint
    region.servers[victim].kill()
    await asyncio.gather(*tasks)
    await restart(region, victim)
    expect(under_way, "the streams did not begin")
    for killed in streams:
        text, options = text_of(killed.events), killed.options or {}
        expect(killed.events[-1] == "[DONE]", f"a stream with {options} ended with {killed.events[-1]}")
        expect(text == wanted, f"the text of a stream with {options} differs from that of one undisturbed")
        expect(len({json.loads(event)["id"] for event in killed.events[:-1]}) == 1, "the events have several ids")
        if options:
            usage, before = (json.loads(events[-2])["usage"] for events in (killed.events, undisturbed))
            same = all(usage[name] == before[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
            expect(same, f"the usage is {usage}, undisturbed {before}")


class KilledStream:
    """A streamed chat whose engine a case may kill."""

    def __init__(self, options: dict[str, bool] | None) -> None:
        self.options = options
        self.endpoint = ""
        self.events: list[str] = []

    async def receive(self, region: Region) -> None:
        """Receive the complete stream."""
        async with stream(region, LONG, model=CONTINUED, stream_options=self.options) as (response, events):
            self.endpoint = response.headers["x-penstock-endpoint"]
            async for event in events:
                self.events.append(event)


async def _all_have(streams: list[KilledStream], events: int) -> bool:
    return all(len(killed.events) >= events for killed in streams)


async def restart(region: Region, victim: str) -> None:
    """Start a killed engine again, and wait until the agent uses it."""
    await asyncio.to_thread(region.servers[victim].start)
    await asyncio.to_thread(region.servers[victim].wait_ready, START_TIMEOUT_S)
    expect(await within(SERVE_TIMEOUT_S, lambda: region.serves(victim)), "the agent does not use the restarted engine")
