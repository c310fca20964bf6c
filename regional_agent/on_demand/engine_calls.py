"""The requests by which endpoints wake and sleep, at the engine or a webhook, and which models an engine lets sleep.

Sources: vLLM 0.32 vllm/entrypoints/serve/dev/sleep/api_router.py, Ollama docs/api.md ("Load a model", "List running
models"), Triton docs/protocol/extension_model_repository.md.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import msgspec

from adapters.files.plain_file import UnusableFile
from adapters.files.secret_file import read_secret
from penstock.policy.kinds.on_demand import OnDemand, WakeMethod
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.http.headers.header_rules import Header
from regional_agent.on_demand.wake_claims import WakeClaims
from regional_agent.routing.engine_request import NO_REWRITE
from regional_agent.shared_load.redis_script import RegionRedis
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.response_head import UpstreamError
from regional_agent.upstream.upstream_pool import UpstreamPool

_EMPTY: Final = b"{}"


class EngineCall(NamedTuple):
    """A POST request to an engine."""

    path: str
    body: bytes = _EMPTY


def wake_calls(on_demand: OnDemand, name: str) -> tuple[EngineCall, ...]:
    """The requests that load a model, in order; none for a webhook.

    Args:
        name: the engine's name of the model.
    """
    match on_demand.wake:
        case WakeMethod.VLLM if on_demand.sleep_level == 2:
            reload = EngineCall("/collective_rpc", b'{"method":"reload_weights"}')
            return EngineCall("/wake_up?tags=weights"), reload, EngineCall("/wake_up?tags=kv_cache")
        case WakeMethod.VLLM:
            return (EngineCall("/wake_up"),)
        case WakeMethod.OLLAMA:
            # Without a limit of its own, Ollama keeps the model until its memory is needed, or until the model sleeps.
            return (EngineCall("/api/generate", msgspec.json.encode({"model": name, "keep_alive": -1})),)
        case WakeMethod.TRITON:
            return (EngineCall(f"/v2/repository/models/{quote(name, safe='')}/load"),)
        case _:
            return ()


def sleep_calls(on_demand: OnDemand, name: str) -> tuple[EngineCall, ...]:
    """The requests that unload a model, in order; none for a webhook."""
    match on_demand.wake:
        case WakeMethod.VLLM:
            # By default vLLM aborts requests that another agent has just sent.
            return (EngineCall(f"/sleep?level={on_demand.sleep_level}&mode=wait"),)
        case WakeMethod.OLLAMA:
            return (EngineCall("/api/generate", msgspec.json.encode({"model": name, "keep_alive": 0})),)
        case WakeMethod.TRITON:
            return (EngineCall(f"/v2/repository/models/{quote(name, safe='')}/unload"),)
        case _:
            return ()


ASLEEP_PAGES: Final = {WakeMethod.VLLM: "/is_sleeping", WakeMethod.OLLAMA: "/api/ps"}
"""The page on which an engine reports what sleeps, by method. Triton reports the readiness of each model."""


class _Sleeping(msgspec.Struct):
    is_sleeping: bool


class _Running(msgspec.Struct):
    name: str
    size: Any = 0
    """Memory (bytes) that the model needs."""
    size_vram: Any = None
    """The part of it that it occupies on GPUs."""


class _RunningList(msgspec.Struct):
    models: list[_Running]


_sleeping: Final = msgspec.json.Decoder(_Sleeping)
_running: Final = msgspec.json.Decoder(_RunningList)

_LATEST: Final = ":latest"
"""The tag that Ollama adds to a name without one."""


class RunningModels(NamedTuple):
    """What occupies the memory of an engine."""

    needed_bytes: dict[str, float]
    """Memory that each model on demand needs."""
    other_bytes: float
    """Memory of what the engine runs beside them."""


def running_models(page: bytes, names: dict[str, str], most_bytes: float) -> RunningModels:
    """The memory of what Ollama runs, by its page `/api/ps`. Sizes that are not possible are ignored.

    Args:
        names: the engine's name of each model on demand.
        most_bytes: size of the memory.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the page is not of the engine's form.
    """
    policy_names = {name.removesuffix(_LATEST): model for model, name in names.items()}
    needed: dict[str, float] = {}
    other_bytes = 0.0
    for running in _running.decode(page).models:
        model = policy_names.get(running.name.removesuffix(_LATEST))
        size = _possible_bytes(running.size, most_bytes)
        if model is None:
            on_gpu = size if running.size_vram is None else _possible_bytes(running.size_vram, most_bytes)
            other_bytes += on_gpu or 0.0
        elif size:
            needed[model] = size
    return RunningModels(needed, min(other_bytes, most_bytes))


def _possible_bytes(size: Any, most_bytes: float) -> float | None:
    is_number = isinstance(size, int) and not isinstance(size, bool)
    return float(size) if is_number and 0 <= size <= most_bytes else None


def asleep(method: WakeMethod, page: bytes, names: dict[str, str]) -> frozenset[str]:
    """The models that sleep, by the page of an engine.

    Args:
        method: one of `ASLEEP_PAGES`.
        page: the body of the engine's answer.
        names: the engine's name of each model that may sleep.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: the page is not of the engine's form.
    """
    if method is WakeMethod.VLLM:
        return frozenset(names) if _sleeping.decode(page).is_sleeping else frozenset()
    running = {model.name.removesuffix(_LATEST) for model in _running.decode(page).models}
    return frozenset(model for model, name in names.items() if name.removesuffix(_LATEST) not in running)


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
