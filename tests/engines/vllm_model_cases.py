"""Cases of a third vLLM server: its context is shorter, and its other model sleeps until requests need it."""

from __future__ import annotations

import asyncio

import httpx

from tests.engines.region import MODEL, ON_DEMAND, Region, within
from tests.engines.servers import START_TIMEOUT_S, VLLM_CONTEXT, vllm_server
from tests.engines.suite import case, expect
from tests.engines.vllm_cases import NAMES, SUBJECT, chat

THIRD = "vllm-short"
SHORT_CONTEXT = VLLM_CONTEXT // 4
FACTS_WITHIN_S = 60.0
"""An agent reads the pages of a ready engine each 30 s."""
SLEEPS_WITHIN_S = 60.0


async def _start_third(region: Region, model: str) -> None:
    """Put the third server behind the agent for one of its models."""
    if THIRD in region.servers:
        await region.change(THIRD, models=[model])
        return
    directory, installed = region.directory / "vllm", region.installed["vllm"]
    server = vllm_server(installed, directory, THIRD, (MODEL, ON_DEMAND), "unused", SHORT_CONTEXT)
    region.servers[THIRD] = server
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.wait_ready, START_TIMEOUT_S)
    await region.add(THIRD, server, server.url, [model], slots=8, engine="auto")


async def _room(region: Region, name: str) -> tuple[int, int]:
    """The context length and the KV capacity (tokens) of MODEL at an endpoint; 0 while they are unknown."""
    served = (await region.endpoint(name)).get("served", [])
    return next(((each["context_tokens"], each["kv_tokens"]) for each in served if each["model"] == MODEL), (0, 0))


async def _prompt(region: Region, characters: float) -> httpx.Response:
    return await chat(region, 4, messages=[{"role": "user", "content": "r" * int(characters)}])


@case(SUBJECT)
async def mixed_contexts(region: Region) -> None:
    """A prompt goes to a server that it fits into, the smallest first; one too long for all gets the API's error."""
    await _start_third(region, MODEL)

    async def known() -> bool:
        rooms = {name: await _room(region, name) for name in (*NAMES, THIRD)}
        contexts = {name: SHORT_CONTEXT if name == THIRD else VLLM_CONTEXT for name in rooms}
        return all(context == contexts[name] and kv >= context for name, (context, kv) in rooms.items())

    try:
        expect(await within(FACTS_WITHIN_S, known), f"the facts are {(await region.endpoint(THIRD)).get('served')}")
        for _ in range(8):  # from which the agent learns the tokens of a byte
            learned = (await _prompt(region, 600)).json()
        per_token = 600 / learned["usage"]["prompt_tokens"]
        small = [await _prompt(region, SHORT_CONTEXT / 8 * per_token) for _ in range(4)]
        large = await asyncio.gather(*(_prompt(region, 2 * SHORT_CONTEXT * per_token) for _ in range(6)))
        refused = await _prompt(region, 3 * VLLM_CONTEXT * per_token)
    finally:
        await region.change(THIRD, models=[ON_DEMAND])
    statuses = [answer.status_code for answer in (*small, *large)]
    expect(statuses == [200] * 10, f"{statuses}: {large[0].text[:300]}")
    served = [[answer.headers["x-penstock-endpoint"] for answer in answers] for answers in (small, large)]
    expect(served[0] == [THIRD] * 4, f"short prompts went to {served[0]}")
    expect(set(served[1]) <= set(NAMES), f"long prompts went to {served[1]}")
    code = refused.json()["error"]["code"] if refused.status_code == 400 else refused.status_code
    expect(code == "context_length_exceeded", f"the longest prompt: {refused.status_code} {refused.text}")
    expect("x-penstock-endpoint" not in refused.headers, "an engine received the longest prompt")


@case(SUBJECT)
async def sleep_and_wake(region: Region) -> None:
    """An idle vLLM sleeps; requests that arrive together wake it once and are all answered; it sleeps again."""
    await _start_third(region, ON_DEMAND)

    async def sleeps() -> bool:
        found: bool = (await region.http.get(f"{region.urls[THIRD]}/is_sleeping")).json()["is_sleeping"]
        return found

    expect(await within(SLEEPS_WITHIN_S, sleeps), f"it does not sleep: {await region.endpoint(THIRD)}")
    before = _wakes(region)
    answers = await asyncio.gather(*(chat(region, 8, model=ON_DEMAND) for _ in range(6)))
    statuses, wakes = [answer.status_code for answer in answers], _wakes(region) - before
    expect(statuses == [200] * 6, f"{statuses}: {answers[0].text[:300]}")
    expect(wakes == 1, f"vLLM received {wakes} requests to wake")
    expect(await within(SLEEPS_WITHIN_S, sleeps), "it does not sleep again")


def _wakes(region: Region) -> int:
    """Requests to wake that vLLM logged."""
    return (region.directory / "vllm" / f"{THIRD}.log").read_text().count("POST /wake_up")
