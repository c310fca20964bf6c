"""An agent, an identity provider, and the control plane's part that publishes the provider's keys."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ed25519
from msgspec.structs import replace

from adapters.store import keys
from adapters.store.config_store import Put
from control_plane.tenants.issuer_key_publisher import IssuerKeyPublisher
from lab.memory_store import MemoryStore
from penstock.policy.kinds import issuers
from penstock.policy.kinds.tenants import Tier
from penstock.policy.policy import Policy
from regional_agent.tenants.issuer_registry import IssuerRegistry
from tests.support.agents import Agent, running_agent
from tests.support.chats import answers, ask
from tests.support.issuer import AUDIENCE, Issuer, jwk, rsa_key
from tests.support.sockets import Script, ScriptedEngine, engine
from tests.support.wait import until

RSA = rsa_key()
ED = ed25519.Ed25519PrivateKey.generate()
TIERS = {"silver": Tier("silver", "open", priority=2), "eu": Tier("eu", "personal", models=("llama-*",))}


class Fleet:
    """An identity provider, the control plane's part that publishes its keys, and an agent."""

    def __init__(self, issuer: Issuer, agent: Agent, publisher: IssuerKeyPublisher, now: list[float]) -> None:
        self.issuer, self.agent, self.publisher, self._now = issuer, agent, publisher, now
        self.ages: dict[str, float] = {}
        self.document: issuers.Issuer
        self.engine: ScriptedEngine
        self.asked: list[asyncio.Task[None]] = []
        """The fetches that `answer_questions` has begun."""

    async def publish(self) -> None:
        """Fetch the provider's keys, as the leader does every few seconds."""
        self._now[0] += 60.0
        await self.publisher.tick()
        await self.publisher.fetches.wait()

    async def rotate(self, **private: Any) -> None:
        self.issuer.private |= private
        self.issuer.keys = [jwk(kid, key) for kid, key in private.items()]
        before = self.agent.config.issuers._sets.get("idp")
        await self.publish()
        await until(lambda: self.agent.config.issuers._sets.get("idp") is not before)

    def answer_questions(self, release: asyncio.Event | None = None) -> None:
        """Let the leader fetch keys as soon as the agent asks for them, or when `release` is set after that."""
        registry = self.agent.config.issuers

        async def fetch() -> None:
            if release is not None:
                await release.wait()
            self.publisher.ask(registry.asked())
            await self.publisher.tick()
            await self.publisher.fetches.wait()

        registry.on_asked = lambda: self.asked.append(asyncio.create_task(fetch()))

    def new_key(self, kid: str = "two") -> None:
        """Add a key at the provider, which nobody has fetched."""
        self.issuer.private[kid] = ED
        self.issuer.keys.append(jwk(kid, ED))

    async def status(self, token: str) -> tuple[int, str]:
        answer = await ask(self.agent, f"Authorization: Bearer {token}")
        return answer.status, "" if answer.status == 200 else json.loads(answer.body)["error"]["message"]


@asynccontextmanager
async def fleet(
    directory: Path, script: Script = answers, agent_fields: Mapping[str, Any] | None = None, **fields: Any
) -> AsyncIterator[Fleet]:
    """A fleet whose provider has the key `one`, which the agent knows. `fields` are those of the issuer's document."""
    with_fields = {"anonymous": None, **(agent_fields or {})}
    now, store, issuer, ages = [0.0], MemoryStore(), Issuer(one=RSA), dict[str, float]()
    async with issuer.http, engine(script) as gpu, running_agent(directory, [gpu.address], **with_fields) as agent:
        await store.commit((), (Put(keys.LEADER, b"x"),))
        leader = await store.get(keys.LEADER)
        assert leader is not None
        document = issuers.Issuer("idp", issuer.url, issuer.jwks_url, (AUDIENCE,), **({"tier": "silver"} | fields))
        in_force: Policy = replace(agent.config.policy, tiers=TIERS, issuers={"idp": document})
        agent.config.issuers = IssuerRegistry(store, directory, agent.config.tenants, Random(1))
        agent.router.requests.authorization._issuers = agent.config.issuers
        agent.config.issuers.start()
        publisher = IssuerKeyPublisher(
            store,
            lambda: (in_force, None),
            lambda: leader.create_revision,
            Random(1),
            lambda: now[0],
            on_ages=lambda ages_s: ages.update(ages_s),
        )
        publisher.informer.start()
        await publisher.informer.wait_synced()
        agent.config.policy = in_force
        running = Fleet(issuer, agent, publisher, now)
        running.engine = gpu
        running.ages, running.document = ages, document
        try:
            await running.rotate(one=RSA)
            yield running
        finally:
            await publisher.informer.stop()
            await publisher.close()
            await agent.config.issuers.stop()
