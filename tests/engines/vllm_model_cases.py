"""Case of a third vLLM server, whose model sleeps until requests need it."""

from __future__ import annotations

import asyncio

from tests.engines.region import ON_DEMAND, Region, within
from tests.engines.servers import START_TIMEOUT_S, vllm_server
from tests.engines.suite import case, expect
from tests.engines.vllm_cases import SUBJECT, chat

SLEEPER = "vllm-sleeper"
SLEEPS_WITHIN_S = 60.0


async def _start_sleeper(region: Region) -> None:
    """Put the third server behind the agent, unless it is there."""
    if SLEEPER in region.servers:
        return
    directory, installed = region.directory / "vllm", region.installed["vllm"]
    server = vllm_server(installed, directory, SLEEPER, (ON_DEMAND,), "unused")
    region.servers[SLEEPER] = server
    await asyncio.to_thread(server.start)
    await asyncio.to_thread(server.wait_ready, START_TIMEOUT_S)
    await region.add(SLEEPER, server, server.url, [ON_DEMAND], slots=8, engine="auto")


@case(SUBJECT)
async def sleep_and_wake(region: Region) -> None:
    """An idle vLLM sleeps; requests that arrive together wake it once and are all answered; it sleeps again."""
    await _start_sleeper(region)

    async def sleeps() -> bool:
        found: bool = (await region.http.get(f"{region.urls[SLEEPER]}/is_sleeping")).json()["is_sleeping"]
        return found

    expect(await within(SLEEPS_WITHIN_S, sleeps), f"it does not sleep: {await region.endpoint(SLEEPER)}")
    before = _wakes(region)
    answers = await asyncio.gather(*(chat(region, 8, model=ON_DEMAND) for _ in range(6)))
    statuses, wakes = [answer.status_code for answer in answers], _wakes(region) - before
    expect(statuses == [200] * 6, f"{statuses}: {answers[0].text[:300]}")
    expect(wakes == 1, f"vLLM received {wakes} requests to wake")
    expect(await within(SLEEPS_WITHIN_S, sleeps), "it does not sleep again")


def _wakes(region: Region) -> int:
    """Requests to wake that vLLM logged."""
    return (region.directory / "vllm" / f"{SLEEPER}.log").read_text().count("POST /wake_up")
