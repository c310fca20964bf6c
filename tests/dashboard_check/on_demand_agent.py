"""An agent with models on demand that share a memory, for the panels of models that load and leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

from tests.integration.test_model_memory import OTHER, OllamaHost, chat, two_models
from tests.support.agents import Agent
from tests.support.chats import ask
from tests.support.planet import MODEL
from tests.support.small_http import Headers, SmallHttp

SITE = "on-demand"
"""The label `site` of the agent, which belongs to none of the demo's regions."""

PAUSE_S = 1.0
"""Time (s) between two requests."""


@asynccontextmanager
async def on_demand_agent(directory: Path) -> AsyncIterator[str]:
    """Run the agent while the context is open, with requests for its models in turn, each of which displaces the other.

    Yields the address of its metrics, as a target of Prometheus.
    """
    host = OllamaHost()
    async with host, two_models(directory, host, scale_to_zero=True) as (agent, _):

        def metrics(method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
            return 200, agent.metrics.render()

        async with SmallHttp(metrics) as server:
            asking = asyncio.create_task(_ask_in_turn(agent))
            try:
                yield server.url.removeprefix("http://")
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)


async def _ask_in_turn(agent: Agent) -> None:
    for model in cycle((MODEL, OTHER)):
        await ask(agent, body=chat(model))
        await asyncio.sleep(PAUSE_S)
