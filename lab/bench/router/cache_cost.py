"""CPU of a kept response, of refusals, and of chats without and with policy for kept responses and shared runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from statistics import median

import msgspec
import yaml

from adapters.servers.process import ServerProcess
from lab.bench.compiled import Build
from lab.bench.process_cost import cpu_s
from lab.bench.router.chat import MODEL, answer, chat_request
from lab.bench.router.contestant import BACKENDS, SLOTS, start_backends
from lab.bench.router.load import Load
from lab.bench.router.rounds import Progress, Setup, clients, turns
from lab.bench.site import agents_of, make_site, traffic_ports
from lab.planet.bundle import bench_router_bundle, write_bundle
from lab.planet.topology import Engine

HIT, SATURATED, NO_MODEL, CHAT, CHAT_BESIDE = "hit", "429", "404", "chat, off", "chat, on for embeddings"

_ROUTE = "openai-embeddings"
_LIMITED_KEY = "bench-limited"
_CACHING: list[dict[str, object]] = [
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


class Asked(msgspec.Struct, frozen=True):
    """Requests whose cost is measured, and the end of their responses."""

    name: str
    is_caching: bool
    """Whether the agent with the policy for kept responses receives them."""
    requests: tuple[bytes, ...]
    status: int = 200
    ends_with: bytes = answer()


class CacheCost(msgspec.Struct, frozen=True):
    """CPU (µs) of one request of each kind: medians over the rounds; the ratios are medians of those of each round."""

    cpu_us: dict[str, float]
    hit_to_refusal: float
    """CPU of a hit, relative to that of a request that its tenant's budget refuses (429)."""
    chat_on_to_off: float
    errors: int


def measure_cache(directory: Path, core: int, setup: Setup, progress: Progress) -> CacheCost:
    """Measure two agents, one of them with the policy, in rounds that alternate between the kinds of requests."""
    found: dict[str, list[float]] = {}
    errors = 0
    with _start_agents(directory, core) as agents:
        for number, asked in turns(_kinds(), setup.rounds):
            progress(f"kept responses, round {number} of {setup.rounds}: {asked.name}")
            process, port = agents[asked.is_caching]
            requests = [asked.requests[each % len(asked.requests)] for each in range(setup.connections)]
            load = Load(port, requests, asked.ends_with, asked.status)
            try:
                load.closed_loop(setup.warm_up_s)
                before_s = cpu_s(process.pid)
                run = load.closed_loop(setup.seconds)
                used_s = cpu_s(process.pid) - before_s
            finally:
                load.close()
            errors += run.errors
            found.setdefault(asked.name, []).append(used_s / max(1, run.answers) * 1e6)
    return CacheCost(
        {name: round(median(values), 2) for name, values in found.items()},
        _ratio(found[HIT], found[SATURATED]),
        _ratio(found[CHAT_BESIDE], found[CHAT]),
        errors,
    )


def _ratio(values: list[float], base: list[float]) -> float:
    return round(median(value / max(1e-9, other) for value, other in zip(values, base, strict=True)), 3)


def _kinds() -> list[Asked]:
    chats = tuple(chat_request(client, stream=False) for client in clients())
    embeddings = tuple(request.replace(b"/v1/chat/completions", b"/v1/embeddings", 1) for request in chats)
    limited = [
        chat_request(msgspec.structs.replace(client, api_key=_LIMITED_KEY), stream=False) for client in clients()
    ]
    limited = [request.replace(b"/v1/chat/completions", b"/v1/embeddings", 1) for request in limited]
    unknown = tuple(request.replace(MODEL.encode(), b"llama-3.1-0b", 1) for request in embeddings)
    return [
        Asked(HIT, True, embeddings),
        Asked(SATURATED, True, tuple(limited), 429, b"}"),
        Asked(NO_MODEL, True, unknown, 404, b"}"),
        Asked(CHAT, False, chats),
        Asked(CHAT_BESIDE, True, chats),
    ]


@contextmanager
def _start_agents(directory: Path, core: int) -> Iterator[dict[bool, tuple[ServerProcess, int]]]:
    """Start backends and two agents: one without policy for kept responses and shared runs, and one with it."""
    engines = [Engine(f"backend-{number}", MODEL, "h100", "a", SLOTS) for number in range(BACKENDS)]
    with ExitStack() as running:
        directory.mkdir(parents=True, exist_ok=True)
        process, backends = start_backends(directory)
        running.callback(process.kill)
        listen = {engine.name: port for engine, port in zip(engines, backends, strict=True)}
        agents = {}
        for is_caching in (False, True):
            bundle, folder = directory / f"policy-{is_caching}", directory / f"site-{is_caching}"
            files = bench_router_bundle(continue_streams=False)
            if is_caching:
                documents = [document | {"apiVersion": "penstock/v1"} for document in _CACHING]
                files["caching.yaml"] = yaml.safe_dump_all(documents)
            write_bundle(bundle, files)
            site = running.enter_context(make_site(engines, listen, 1, folder, Build(bundle=bundle), core))
            agents[is_caching] = agents_of(site)[0], traffic_ports(site)[0]
        yield agents
