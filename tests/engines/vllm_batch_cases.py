"""Cases of batches on two vLLM servers behind an agent."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

from tests.engines.region import MODEL, Region, within
from tests.engines.servers import VLLM_RUNS
from tests.engines.suite import case, expect
from tests.engines.vllm_cases import CANCELLED_WITHIN_S, NAMES, SLOTS, SUBJECT, chat_body, running, stream

FULL = len(NAMES) * VLLM_RUNS
"""Requests that both engines run at once."""

CHATS = 3
BATCH_TOKENS = 1200


@case(SUBJECT)
async def preempted_batch(region: Region) -> None:
    """Chats take the slots of running batch requests: the engines stop these within 1 s, and each result is once."""
    for name in NAMES:
        await region.change(name, slots=VLLM_RUNS)
    try:
        await _preempt(region)
    finally:
        for name in NAMES:
            await region.change(name, slots=SLOTS)


async def _preempt(region: Region) -> None:
    before = await _preemptions(region)
    requests = [f"r{number}" for number in range(FULL + 4)]
    batch = await _start(region, requests)
    expect(await within(30.0, lambda: _runs(region, FULL)), f"the engines run {await running(region)} of {FULL}")

    began = time.monotonic()

    async def first_token_s() -> float:
        async with stream(region, 50, model=MODEL) as (response, events):
            expect(response.status_code == 200, f"a chat got {response.status_code}")
            await anext(events)
            took = time.monotonic() - began
            async for _ in events:
                pass
        return took

    chats = [asyncio.ensure_future(first_token_s()) for _ in range(CHATS)]
    expect(await within(1.0, lambda: _preempted(region, before + CHATS)), f"preemptions: {await _preemptions(region)}")
    ended_s = time.monotonic() - began
    # While an engine computes what was ended, it runs or holds more than it has slots.
    freed = await within(CANCELLED_WITHIN_S, lambda: _runs(region, FULL, or_less=True))
    freed_s = time.monotonic() - began
    expect(freed, f"{CANCELLED_WITHIN_S:g} s after the preemptions the engines have {await running(region)} requests")
    firsts = await asyncio.gather(*chats)
    print(f"preempted after {ended_s:.2f} s, slots free after {freed_s:.2f} s, first tokens after {max(firsts):.2f} s")
    expect(max(firsts) < 2.0, f"the first tokens of chats came after {firsts} s")

    done: dict[str, Any] = {}

    async def is_ended() -> bool:
        done.update((await region.http.get(f"{region.url}/v1/batches/{batch}")).json())
        return done["status"] in ("completed", "failed", "expired", "cancelled")

    expect(await within(200.0, is_ended), f"the batch is {done}")
    counts = {"total": len(requests), "completed": len(requests), "failed": 0}
    expect(done["request_counts"] == counts, f"the batch is {done}")
    text = (await region.http.get(f"{region.url}/v1/files/{done['output_file_id']}/content")).text
    results = [json.loads(line) for line in text.splitlines()]
    expect(sorted(each["custom_id"] for each in results) == sorted(requests), "a result is missing, or there twice")
    tokens = {each["response"]["body"]["usage"]["completion_tokens"] for each in results}
    expect(tokens == {BATCH_TOKENS}, f"the results have {tokens} tokens")
    expect(
        await _preemptions(region) == before + CHATS, f"there were {await _preemptions(region) - before} preemptions"
    )


async def _start(region: Region, requests: list[str]) -> str:
    path = "/v1/chat/completions"
    content = "".join(
        json.dumps({"custom_id": each, "method": "POST", "url": path, "body": chat_body(BATCH_TOKENS)}) + "\n"
        for each in requests
    )
    files = {"file": ("requests.jsonl", content.encode())}
    uploaded = await region.http.post(f"{region.url}/v1/files", data={"purpose": "batch"}, files=files)
    expect(uploaded.status_code == 200, uploaded.text)
    body = {"input_file_id": uploaded.json()["id"], "endpoint": path, "completion_window": "24h"}
    created = await region.http.post(f"{region.url}/v1/batches", json=body)
    expect(created.status_code == 200, created.text)
    return str(created.json()["id"])


async def _runs(region: Region, count: int, *, or_less: bool = False) -> bool:
    found = await running(region)
    return found <= count if or_less else found == count


async def _preemptions(region: Region) -> float:
    page = (await asyncio.to_thread(region.agent.ask, "/metrics")).text
    found = re.search(r"^penstock_agent_batch_preemptions_total (\S+)$", page, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def _preempted(region: Region, count: float) -> bool:
    return await _preemptions(region) == count
