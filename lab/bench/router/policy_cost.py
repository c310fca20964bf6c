"""CPU of requests under different policies: an agent for each policy, measured in rounds that alternate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import yaml

from adapters.servers.process import ServerProcess
from lab.bench.compiled import Build
from lab.bench.process_cost import own_cpu_s
from lab.bench.router.chat import MODEL, answer
from lab.bench.router.contestant import BACKENDS, SLOTS, start_backends
from lab.bench.router.load import Load
from lab.bench.router.rounds import Progress, Setup, turns
from lab.bench.site import agents_of, make_site, traffic_ports
from lab.planet.bundle import bench_router_bundle, write_bundle
from lab.planet.topology import Engine

Document = dict[str, Any]
"""A document of policy without its `apiVersion`."""


class Asked(msgspec.Struct, frozen=True):
    """Requests whose cost is measured, and the end of their responses."""

    name: str
    policy: str
    """The policy of the agent that receives them."""
    requests: tuple[bytes, ...]
    status: int = 200
    ends_with: bytes = answer()


class PolicyCost(msgspec.Struct, frozen=True):
    """CPU (µs) of one request of each kind, by its name, in each round.

    It is that of the agent, without the process that stores the segments of its ledger.
    """

    cpu_us: dict[str, list[float]]
    errors: int

    def median_us(self, name: str) -> float:
        """Return the median over the rounds."""
        return median(self.cpu_us[name])

    def more_us(self, name: str, base: str) -> float:
        """Return what a request of the kind `name` costs more than one of `base`: the median of the rounds (µs)."""
        return median(value - other for value, other in zip(self.cpu_us[name], self.cpu_us[base], strict=True))

    def ratio(self, name: str, base: str) -> float:
        """Return the median of the rounds' ratios of two kinds."""
        pairs = zip(self.cpu_us[name], self.cpu_us[base], strict=True)
        return median(value / max(1e-9, other) for value, other in pairs)


def measure_policies(
    directory: Path,
    core: int,
    policies: Mapping[str, Mapping[str, Sequence[Document]]],
    kinds: Sequence[Asked],
    setup: Setup,
    progress: Progress,
) -> PolicyCost:
    """Measure kinds of requests.

    Args:
        directory: directory for all files; created if missing.
        core: the core of the agents.
        policies: files that each policy adds to the shipped bundle, or replaces there, by the name of the policy.
        kinds: what is measured.
    """
    found: dict[str, list[float]] = {asked.name: [] for asked in kinds}
    errors = 0
    with _start_agents(directory, core, policies) as agents:
        for number, asked in turns(kinds, setup.rounds):
            progress(f"policies, round {number} of {setup.rounds}: {asked.name}")
            process, port = agents[asked.policy]
            requests = [asked.requests[each % len(asked.requests)] for each in range(setup.connections)]
            load = Load(port, requests, asked.ends_with, asked.status)
            try:
                load.closed_loop(setup.warm_up_s)
                before_s = own_cpu_s(process.pid)
                run = load.closed_loop(setup.seconds)
                used_s = own_cpu_s(process.pid) - before_s
            finally:
                load.close()
            errors += run.errors
            found[asked.name].append(round(used_s / max(1, run.answers) * 1e6, 2))
    return PolicyCost(found, errors)


@contextmanager
def _start_agents(
    directory: Path, core: int, policies: Mapping[str, Mapping[str, Sequence[Document]]]
) -> Iterator[dict[str, tuple[ServerProcess, int]]]:
    """Start backends, and an agent with each policy; yields its process and port."""
    engines = [Engine(f"backend-{number}", MODEL, "h100", "a", SLOTS) for number in range(BACKENDS)]
    with ExitStack() as running:
        directory.mkdir(parents=True, exist_ok=True)
        process, backends = start_backends(directory)
        running.callback(process.kill)
        listen = {engine.name: port for engine, port in zip(engines, backends, strict=True)}
        agents = {}
        for number, (name, added) in enumerate(policies.items()):
            bundle, folder = directory / f"policy-{number}", directory / f"site-{number}"
            files = bench_router_bundle(continue_streams=False)
            for file, documents in added.items():
                files[file] = yaml.safe_dump_all({"apiVersion": "penstock/v1"} | each for each in documents)
            write_bundle(bundle, files)
            site = running.enter_context(make_site(engines, listen, 1, folder, Build(bundle=bundle), core))
            agents[name] = agents_of(site)[0], traffic_ports(site)[0]
        yield agents
