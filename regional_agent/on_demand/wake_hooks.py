"""Sends the requests by which endpoints wake and sleep: to the engine, or to a webhook."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from adapters.files.plain_file import UnusableFile
from adapters.files.secret_file import read_secret
from penstock.http.header_rules import Header
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.on_demand.engine_calls import EngineCall, sleep_calls, wake_calls
from regional_agent.on_demand.wake_claims import WakeClaims
from regional_agent.routing.request_rewrite import NO_REWRITE
from regional_agent.shared_load.redis_script import RegionRedis
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

MAX_ANSWER_BYTES: Final = 64 * 1024

MAX_SHOWN: Final = 200
"""Maximum characters of an answer that are shown to operators."""

_JSON: Final = (b"content-type", b"application/json")


class Action(StrEnum):
    """What a hook is asked for."""

    WAKE = "wake"
    SLEEP = "sleep"


class HookFailed(Exception):
    """The engine or the webhook failed; the message states how."""


class _Order(msgspec.Struct):
    action: Action
    region: str
    model: str
    endpoint: str | None


class WakeHooks:
    """The hooks of one agent."""

    def __init__(
        self, agent: AgentInstance, connections: UpstreamPool, token_file: Path | None, redis: RegionRedis | None
    ) -> None:
        """Create the hooks.

        Args:
            token_file: has the bearer token of webhooks; None sends none.
            redis: by which the agents of the region claim endpoints; None for the only agent.
        """
        self.claims = WakeClaims(agent.name, redis)
        """The claims of the agent."""
        self._region = agent.region
        self._connections = connections
        self._token_file = token_file

    async def run(self, action: Action, model: str, endpoint: Endpoint | None, on_demand: OnDemand) -> None:
        """Wake an endpoint or let it sleep; returns when the hook has answered.

        Args:
            endpoint: None asks a webhook for an endpoint of the model.

        Raises:
            HookFailed: no 2xx answer within `timeout_s` of the policy.
        """
        try:
            async with asyncio.timeout(on_demand.timeout_s):
                if on_demand.wake is WakeMethod.WEBHOOK:
                    await self._call_webhook(
                        _Order(action, self._region, model, None if endpoint is None else endpoint.name), on_demand
                    )
                elif endpoint is not None:
                    rewrite = endpoint.rewrite or NO_REWRITE
                    calls = wake_calls if action is Action.WAKE else sleep_calls
                    for call in calls(on_demand, rewrite.engine_name(model)):
                        target = EngineCall(rewrite.target(call.path), call.body)
                        await self._post(endpoint.address, target, rewrite.headers, on_demand.timeout_s)
        except TimeoutError:
            raise HookFailed(f"no answer within {on_demand.timeout_s:g} s") from None

    async def _call_webhook(self, order: _Order, on_demand: OnDemand) -> None:
        url = str(on_demand.webhook)
        headers: tuple[Header, ...] = ()
        if self._token_file is not None:
            # Read for each order, which is rare, so that a replaced token is used at once.
            try:
                token = await asyncio.to_thread(read_secret, self._token_file, "token of wake webhooks", min_bytes=1)
            except UnusableFile as error:
                raise HookFailed(str(error)) from None
            headers = ((b"authorization", b"Bearer " + token),)
        try:
            address, path = Address.parse(url), urlsplit(url).path or "/"
        except ValueError as error:
            raise HookFailed(str(error)) from None
        await self._post(address, EngineCall(path, msgspec.json.encode(order)), headers, on_demand.timeout_s)

    async def _post(self, address: Address, call: EngineCall, headers: tuple[Header, ...], timeout_s: float) -> None:
        request = FetchRequest(call.path, (*headers, _JSON), call.body)
        try:
            answer = await fetch(self._connections, address, request, timeout_s=timeout_s, limit_bytes=MAX_ANSWER_BYTES)
        except UpstreamError as error:
            raise HookFailed(f"POST {call.path}: {error}") from None
        if not 200 <= answer.status < 300:
            shown = answer.body[:MAX_SHOWN].decode("utf-8", "replace").strip()
            raise HookFailed(f"POST {call.path} answers {answer.status}{shown and ': '}{shown}")
