"""CPU of a kept response, of refusals, and of chats without and with policy for kept responses and shared runs."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

from lab.bench.router.chat import MODEL, chat_request, embedding
from lab.bench.router.policy_cost import Asked, Document, PolicyCost, measure_policies
from lab.bench.router.rounds import Progress, Setup, clients

HIT, SATURATED, NO_MODEL, CHAT, CHAT_BESIDE = "hit", "429", "404", "chat, off", "chat, on for embeddings"

_OFF, _CACHING = "off", "caching"
_ROUTE = "openai-embeddings"
_LIMITED_KEY = "bench-limited"
_DOCUMENTS: list[Document] = [
    {"kind": "ResultCache", "name": "bench", "routes": [_ROUTE], "tenants": ["*"], "max_age_s": 86_400},
    {"kind": "Coalescing", "routes": [_ROUTE]},
    {
        "kind": "Tenant",
        "name": "limited",
        "data_class": "open",
        "key_digests": [sha256(_LIMITED_KEY.encode()).hexdigest()],
        "quota": {"requests_per_s": 0.0001, "burst_requests": 1},
    },
]


def measure_cache(directory: Path, core: int, setup: Setup, progress: Progress) -> PolicyCost:
    """Measure two agents, one of them with the policy."""
    policies: dict[str, dict[str, list[Document]]] = {_OFF: {}, _CACHING: {"caching.yaml": _DOCUMENTS}}
    return measure_policies(directory, core, policies, _kinds(), setup, progress)


def _kinds() -> list[Asked]:
    chats = tuple(chat_request(client, stream=False) for client in clients())
    embeddings = tuple(request.replace(b"/v1/chat/completions", b"/v1/embeddings", 1) for request in chats)
    limited = [
        chat_request(msgspec.structs.replace(client, api_key=_LIMITED_KEY), stream=False) for client in clients()
    ]
    limited = [request.replace(b"/v1/chat/completions", b"/v1/embeddings", 1) for request in limited]
    unknown = tuple(request.replace(MODEL.encode(), b"llama-3.1-0b", 1) for request in embeddings)
    return [
        Asked(HIT, _CACHING, embeddings, ends_with=embedding()),
        Asked(SATURATED, _CACHING, tuple(limited), 429, b"}"),
        Asked(NO_MODEL, _CACHING, unknown, 404, b"}"),
        Asked(CHAT, _OFF, chats),
        Asked(CHAT_BESIDE, _CACHING, chats),
    ]
