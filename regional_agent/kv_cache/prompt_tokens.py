"""Requests the tokens of new prompts from engines, in the background, so that KV events can be matched with prefixes.

Requests are sent one at a time, to the endpoint that received the prompt (`POST /tokenize`, which vLLM and compatible
engines serve). Prompts that do not fit into the bounded queue are dropped, and their prefixes are estimated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

import msgspec

from penstock.cost.work_estimate import prompt_of
from penstock.kv_cache.held_prefixes import HeldPrefixes
from penstock.pools.placement import WorkEstimate
from penstock.routing.affinity import BLOCK_BYTES, MAX_BLOCKS
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.http.messages import Request
from regional_agent.routing.request_rewrite import NO_REWRITE
from regional_agent.upstream.http_fetch import FetchRequest, fetch
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

MAX_WAITING: Final = 32
"""Maximum number of queued prompts."""

MAX_BODY_BYTES: Final = 256 * 1024
"""Maximum size of a request body; prompts in larger bodies are not queued."""

MAX_ANSWER_BYTES: Final = 4 << 20
TIMEOUT_S: Final = 5.0

PAUSE_S: Final = 0.02
"""Time (s) between two prompts, which bounds the cost for engines and the agent."""

_CHAT: Final = b"/v1/chat/completions"
_COMPLETIONS: Final = b"/v1/completions"


class _Body(msgspec.Struct, omit_defaults=True):
    """The fields of a request that determine its tokens."""

    model: str = ""
    messages: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    add_generation_prompt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    continue_final_message: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    chat_template_kwargs: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    add_special_tokens: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    cache_salt: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Answer(msgspec.Struct):
    tokens: list[int]


class _Prompt(NamedTuple):
    endpoint: Endpoint
    model: str
    prefix: list[int]
    body: bytes


class PromptTokens:
    """The queue of prompts whose tokens are requested."""

    def __init__(self, held: HeldPrefixes, connections: UpstreamPool) -> None:
        """Create an empty queue; `held` receives the tokens."""
        self.failed = 0
        """Number of prompts for which an engine returned no tokens."""
        self._held = held
        self._connections = connections
        self._waiting: deque[_Prompt] = deque()
        self._arrived = asyncio.Event()

    def sent(self, endpoint: Endpoint, request: Request, estimate: WorkEstimate) -> None:
        """Queue the prompt of a request that was sent to an endpoint, if the endpoint's KV events are current."""
        prefix = estimate.prefix[:MAX_BLOCKS]
        if not prefix or not request.whole or self._held.is_linked(prefix) or endpoint.name not in self._held.endpoints:
            return
        path = request.target.partition(b"?")[0]
        if estimate.adapter or estimate.ask.media or len(request.body) > MAX_BODY_BYTES:
            return
        if path in (_CHAT, _COMPLETIONS) and len(self._waiting) < MAX_WAITING:
            self._waiting.append(_Prompt(endpoint, estimate.model, prefix, bytes(request.body)))
            self._arrived.set()

    async def keep_asking(self) -> None:
        """Request the tokens of queued prompts until cancelled."""
        while True:
            await self._arrived.wait()
            if not self._waiting:
                self._arrived.clear()
                continue
            prompt = self._waiting.popleft()
            blocks = self._held.endpoints.get(prompt.endpoint.name)
            if blocks is not None and blocks.block_size and not self._held.is_linked(prompt.prefix):
                tokens = await self._ask(prompt)
                if tokens is None:
                    self.failed += 1
                else:
                    length = len(prompt_of(prompt.body))
                    self._held.link(prompt.prefix, BLOCK_BYTES, length, tokens, blocks.block_size)
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, prompt: _Prompt) -> list[int] | None:
        rewrite = prompt.endpoint.rewrite or NO_REWRITE
        body = tokenize_body(prompt.body, rewrite.engine_name(prompt.model))
        if body is None:
            return None
        try:
            answer = await fetch(
                self._connections,
                prompt.endpoint.address,
                FetchRequest(
                    rewrite.target("/tokenize"), ((b"content-type", b"application/json"), *rewrite.headers), body
                ),
                timeout_s=TIMEOUT_S,
                limit_bytes=MAX_ANSWER_BYTES,
            )
            return msgspec.json.decode(answer.body, type=_Answer).tokens if answer.status == 200 else None
        except (UpstreamError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def tokenize_body(body: bytes, model: str) -> bytes | None:
    """Return the body of a request for the tokens of a prompt; None if its cached blocks depend on more than tokens."""
    try:
        found = msgspec.json.decode(body, type=_Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if found.cache_salt is not msgspec.UNSET or (found.messages is msgspec.UNSET) == (found.prompt is msgspec.UNSET):
        return None
    if found.prompt is not msgspec.UNSET and not bytes(found.prompt).startswith(b'"'):
        return None
    found.model = model
    return msgspec.json.encode(found)
