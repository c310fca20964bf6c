"""An agent of `running_agent` whose models are loaded on demand, with its real hooks, claims and decisions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from msgspec.structs import replace

from penstock.policy.kinds.models import Model
from regional_agent.background_tasks import cancel, keep_running
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.on_demand.on_demand_models import OnDemandModels, OtherParts
from regional_agent.on_demand.wake_hooks import WakeHooks
from regional_agent.shared_load.redis_script import RedisAddress, RegionRedis
from tests.support.agents import Agent
from tests.support.shared_loads import region_keys
from tests.support.wait import until


@asynccontextmanager
async def deciding(
    agent: Agent,
    models: Iterable[Model],
    *,
    name: str,
    redis_url: str | None = None,
    token_file: Path | None = None,
    with_model: Iterable[str] = (),
    others: OtherParts | None = None,
) -> AsyncIterator[OnDemandModels]:
    """Load `models`, and no others, on demand while the context is open.

    Args:
        name: of the agent.
        redis_url: where the agents of the region claim what they do.
        with_model: the other regions that have an endpoint of each model.
        others: the state of the other regions; None: as the agent's peers report it.
    """
    agent.config.policy = replace(agent.config.policy, models={model.name: model for model in models})
    redis = None if redis_url is None else RegionRedis(RedisAddress(redis_url), region_keys("eu-de"), "eu-de")
    hooks = WakeHooks(AgentInstance("eu-de", name, 1), agent.endpoints._connections, token_file, redis)
    others = others or OtherParts(
        "eu-de",
        lambda model: dict.fromkeys(agent.peers.addresses, 0.0),
        lambda model: frozenset(with_model),
        lambda: True,
    )
    found = OnDemandModels(agent.endpoints, agent.queue.queues, hooks, others, Random(1))
    found.use_policy(agent.config.policy)
    agent.endpoints.use_policy(agent.config.policy)
    agent.router.local.on_demand = agent.metrics.on_demand.models = found
    agent.endpoints.start()
    task = keep_running("models on demand", found.keep_deciding)
    await until(lambda: all(each.reported.loaded is not None for each in agent.endpoints.every()))
    try:
        yield found
    finally:
        await cancel([task])
        await found.attempts.stop()
        await agent.endpoints.stop()
