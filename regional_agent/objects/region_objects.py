"""Asks the agents of other regions where an object is that no agent of this region has recorded, and answers them.

A client may continue in another region than the one in which it began. Only the regions that may serve the request are
asked, all at once; the first that has the object is its location.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from penstock.health.region_health import RegionState
from penstock.routes.object_locations import MAX_OBJECT_ID_CHARS, ObjectLocation
from penstock.wire import object_query
from penstock.wire.object_query import ObjectAnswer, ObjectQuery
from penstock.wire.peer_keys import BadSignature, Keyring
from regional_agent.config.active_config import ActiveConfig
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.peers.peer_prober import PeerProber
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

TIMEOUT_S: Final = 1.0
"""Timeout (s) of one question, connecting included: a few round trips around the world."""

MAX_ASKED: Final = 256
"""Maximum number of objects that are asked for at once; a further one counts as unknown."""

MAX_ASKED_BY_TENANT: Final = 16
"""The same for one tenant, so that a tenant with unknown identifiers does not delay the others."""

MAX_ANSWER_BYTES: Final = 4096

_UNREACHABLE: Final = frozenset({RegionState.UNKNOWN, RegionState.FAILED})

log = structlog.get_logger()


class RegionObjects:
    """Finds the objects that other regions have."""

    def __init__(self, agent: AgentInstance, peers: PeerProber, connections: UpstreamPool) -> None:
        """Create a finder without questions.

        Args:
            agent: this start of the agent.
            peers: state, address and keys of the other regions.
            connections: connections to agents.
        """
        self._agent = agent
        self._peers = peers
        self._connections = connections
        self._asked: dict[str, int] = {}
        """Number of objects that are asked for now, by tenant."""

    async def find(self, tenant: str, object_id: str, regions: Iterable[str]) -> ObjectLocation | None:
        """Return the location of a tenant's object in one of `regions`; None if none of them answers that it has it."""
        asked = self._asked.get(tenant, 0)
        if not 0 < len(object_id) <= MAX_OBJECT_ID_CHARS or asked >= MAX_ASKED_BY_TENANT:
            return None
        if sum(self._asked.values()) >= MAX_ASKED:
            return None
        here, state = self._agent.region, self._peers.state
        others = [name for name in regions if name != here and state(name) not in _UNREACHABLE]
        self._asked[tenant] = asked + 1
        questions = [asyncio.create_task(self._ask(region, tenant, object_id)) for region in others]
        try:
            for question in asyncio.as_completed(questions):
                found = await question
                if found is not None:
                    return found
            return None
        finally:
            for task in questions:
                task.cancel()
            self._asked[tenant] -= 1
            if not self._asked[tenant]:
                del self._asked[tenant]

    async def _ask(self, region: str, tenant: str, object_id: str) -> ObjectLocation | None:
        address = self._peers.address(region)
        peer_keys = None if address is None else self._peers.peer_keys(region, address)
        if address is None or peer_keys is None:
            return None
        nonce, agent = os.urandom(16).hex(), self._agent
        query = ObjectQuery(agent.region, agent.name, region, nonce, time.time(), tenant, object_id)
        headers = [(object_query.HEADER.encode(), object_query.seal_query(query, peer_keys).encode())]
        request = FetchRequest(object_query.PATH, headers)
        try:
            fetched = await fetch(
                self._connections, address, request, timeout_s=TIMEOUT_S, limit_bytes=MAX_ANSWER_BYTES
            )
            if fetched.status != 200:
                return None
            answer = object_query.open_answer(fetched.body, query, peer_keys)
        except UpstreamError:
            return None
        except BadSignature as error:
            log.warning("answer about an object rejected", region=region, reason=str(error))
            return None
        return ObjectLocation(answer.model, region, "") if answer.model else None


class ObjectQueryReader:
    """Reads and answers the questions of other regions' agents."""

    def __init__(self, region: str, keyring: Keyring, config: ActiveConfig) -> None:
        """Create a reader.

        Args:
            region: the region of this agent.
            keyring: verifies questions and signs answers.
            config: the policy in force, which lists the regions.
        """
        self._region = region
        self._keyring = keyring
        self._config = config

    def read(self, token: bytes | None) -> ObjectQuestion | tuple[int, bytes]:
        """Return the question in a header, or the HTTP status and body of its rejection.

        Args:
            token: value of the header; None if the request has none.
        """
        policy = self._config.policy
        if policy is None:
            return 503, b"no policy yet\n"
        try:
            opened = object_query.open_query((token or b"").decode("latin-1"), self._keyring, self._region, time.time())
        except BadSignature as error:
            return 401, f"{error}\n".encode()
        if isinstance(opened, str):
            return 403, f"{opened}\n".encode()
        query, peer_keys = opened
        if query.origin not in policy.regions or query.origin == self._region:
            return 403, b"not another region of the policy\n"
        return ObjectQuestion(
            query.tenant, query.object_id, lambda answer: object_query.seal_answer(answer, query, peer_keys)
        )


class ObjectQuestion:
    """A question that an agent of another region signed."""

    def __init__(self, tenant: str, object_id: str, seal: Callable[[ObjectAnswer], bytes]) -> None:
        """`seal` signs the answer for the agent that asks."""
        self.tenant = tenant
        self.object_id = object_id
        self._seal = seal

    def answer(self, location: ObjectLocation | None, here: str) -> bytes:
        """Return the body of the answer; an object in another region than `here` is unknown."""
        model = location.model if location is not None and location.region == here else ""
        return self._seal(ObjectAnswer(here, model))
