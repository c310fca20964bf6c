"""`make bench-propagation`: the time until 100 agents apply a policy change, or refuse a revoked key; a real etcd.

One real control plane plans and publishes; the agents only follow etcd with the production code and store the
configuration on disk. Three changes are measured: a commit to a git repository whose host calls the webhook, files
written to a watched folder, and the revocation of an API key over the REST API. The time is measured from just before
the change until an agent has applied it. Open requests of a revoked key end at the next check of requests after that,
within 0.1 s.
"""

from __future__ import annotations

import asyncio
import hmac
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
import uvloop
from dulwich.objects import Blob, Commit, ObjectID, Tree
from dulwich.repo import Repo

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess, find_script
from adapters.servers.readiness import http_ok
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from lab.bench.bench_results import (
    Columns,
    Goal,
    Machine,
    closing_line,
    columns_table,
    goal,
    goals_table,
    show,
    this_machine,
    write_results,
)
from lab.bench.propagation_agents import KNOWN, REVOKED, TENANT
from lab.open_files import allow_many_open_files
from lab.planet.bundle import SHIPPED_BUNDLE, without_stages
from lab.planet.configs import ADMIN_TOKEN_FILE, control_plane_identity_dir
from lab.planet.secret_files import write_secret, write_secrets
from lab.quantile import quantile
from lab.server_starting import start_etcd, start_server
from penstock.fleet.snapshot import SETTLE_S

AGENTS = 100
PROCESSES = 4
CHANGES = 20
"""Number of policy changes per source."""

APART_S = 2.0
"""Maximum random pause (s) between two changes, so that changes are not synchronised with periodic tasks."""

PATIENCE_S = 30.0
GOAL_P99_S = 1.0
OUT = Path("out/bench/propagation.json")

TIER = f"apiVersion: penstock/v1\nkind: Tier\nname: {TENANT}\ndata_class: open\n"
"""Document of the tier of the tenant whose keys are revoked."""

SECRET = "a secret of this benchmark only"
MAIN = b"refs/heads/main"
"""The branch that the control plane reads by default."""


class Stages(msgspec.Struct, frozen=True):
    """Times (s) at which one change reached each stage, from the start of the change."""

    told_s: float
    """The files were written, or the webhook had responded."""
    first_agent_s: float
    all_agents_s: float


class Way(msgspec.Struct, frozen=True):
    """Results of one source of policy, over all changes and agents; times in seconds."""

    name: str
    changes: int
    agents: int
    median_s: float
    p99_s: float
    max_s: float
    all_agents_median_s: float
    """Median over changes of the time of the slowest agent."""
    slowest: Stages
    """The slowest change."""


class Results(msgspec.Struct, frozen=True):
    """Contents of the results file."""

    machine: Machine
    ways: tuple[Way, ...]
    goals: tuple[Goal, ...]


class Agents:
    """All agents, in a few processes, and the times at which the agents applied each policy."""

    def __init__(self) -> None:
        self.seen: dict[str, list[float]] = {}
        self._news = asyncio.Event()
        self._processes: list[asyncio.subprocess.Process] = []
        self._readers: list[asyncio.Task[None]] = []

    async def start(self, endpoint: str, directory: Path, regions: list[str]) -> None:
        identity = str(control_plane_identity_dir(directory, "bench"))
        for number in range(PROCESSES):
            mine = [regions[at % len(regions)] for at in range(number, AGENTS, PROCESSES)]
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "lab.bench.propagation_agents", endpoint, identity, str(directory / str(number)), *mine),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=(directory / f"agents-{number}.log").open("wb"),
            )
            self._processes.append(process)
            self._readers.append(asyncio.create_task(self._read(process)))

    async def stop(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        await asyncio.gather(*(process.wait() for process in self._processes), *self._readers)

    async def all_at(self, digest: str) -> list[float]:
        """Return the times at which the agents applied the policy, sorted; raises TimeoutError."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.seen.get(digest, ())) < AGENTS:
                self._news.clear()
                await self._news.wait()
        return sorted(self.seen[digest])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            at, digest, _ = line.decode().split()
            self.seen.setdefault(digest, []).append(float(at))
            self._news.set()


class Repository:
    """A bare git repository with the bundle at its root."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True)
        self._repo = Repo.init_bare(str(path))
        self._newest: list[ObjectID] = []

    def commit(self, files: Mapping[str, str]) -> None:
        tree = Tree()
        for name, content in files.items():
            blob = Blob.from_string(content.encode())
            self._repo.object_store.add_object(blob)
            tree.add(name.encode(), 0o100644, blob.id)
        self._repo.object_store.add_object(tree)
        commit = Commit()
        commit.tree = tree.id
        commit.parents = self._newest
        commit.author = commit.committer = b"Benchmark <bench@example.invalid>"
        commit.author_time = commit.commit_time = int(time.time())
        commit.author_timezone = commit.commit_timezone = 0
        commit.message = b"Change the policy"
        self._repo.object_store.add_object(commit)
        self._repo.refs[MAIN] = commit.id  # type: ignore[index]
        self._newest = [commit.id]


def bundle(number: int) -> dict[str, str]:
    """The shipped bundle without rollout stages, with a spillover margin that identifies the change."""
    files = without_stages(read_folder(SHIPPED_BUNDLE))
    (name,) = (name for name, content in files.items() if "kind: Spillover\n" in content)
    margin = f"margin_s: {0.25 + number / 1000:.3f}"
    files[name] = files[name].replace("kind: Spillover\n", f"kind: Spillover\n{margin}\n")
    return files


def control_plane(directory: Path, endpoint: str, settings: Mapping[str, str]) -> tuple[ServerProcess, str]:
    """Start a control plane. Returns the process and its URL."""
    write_secrets(directory, (), ("bench",))
    url = ""

    def make() -> ServerProcess:
        nonlocal url
        (port,) = free_ports(1)
        url = f"http://{LOOPBACK}:{port}"
        ours = {
            "NAME": "bench",
            "LISTEN": f"{LOOPBACK}:{port}",
            "ETCD_ENDPOINTS": endpoint,
            "IDENTITY_DIR": str(control_plane_identity_dir(directory, "bench")),
            "ADMIN_TOKEN_FILE": str(directory / ADMIN_TOKEN_FILE),
        }
        return ServerProcess(
            "control plane",
            [find_script("penstock"), "serve"],
            log_path=directory / "control-plane.log",
            ready=http_ok(f"{url}/livez"),
            ports=(port,),
            env={f"PENSTOCK_{key}": value for key, value in {**ours, **settings}.items()},
        )

    return start_server(make, tries=3, timeout_s=PATIENCE_S), url


async def by_webhook(directory: Path) -> Way:
    """Measure commits to a repository whose host calls the webhook."""
    repository = Repository(directory / "policy.git")
    repository.commit(bundle(0))
    write_secret(directory / "webhook.secret", SECRET)
    settings = {
        "POLICY_REPOSITORY": str(directory / "policy.git"),
        "POLICY_POLL_S": "3600",
        "POLICY_WEBHOOK_SECRET_FILE": str(directory / "webhook.secret"),
    }
    body = b'{"ref": "refs/heads/main"}'
    signature = {"x-hub-signature-256": "sha256=" + hmac.new(SECRET.encode(), body, sha256).hexdigest()}
    async with httpx.AsyncClient() as host:

        async def change(url: str, files: Mapping[str, str]) -> None:
            await asyncio.to_thread(repository.commit, files)
            delivered = await host.post(f"{url}/v1/policies/webhook", content=body, headers=signature)
            delivered.raise_for_status()

        return await _by_policy("commit and webhook", directory, settings, change)


async def by_folder(directory: Path) -> Way:
    """Measure files that are written to a watched folder."""
    folder = directory / "policies"
    folder.mkdir()

    async def change(_: str, files: Mapping[str, str]) -> None:
        for name, content in files.items():
            (folder / name).write_text(content)

    await change("", bundle(0))
    return await _by_policy("files in a folder", directory, {"POLICY_DIR": str(folder)}, change)


async def by_revocation(directory: Path) -> Way:
    """Measure revocations of API keys of a tenant that was created over the API."""
    folder = directory / "policies"
    folder.mkdir()
    files = bundle(0) | {"bench-tier.yaml": TIER}
    for name, content in files.items():
        (folder / name).write_text(content)
    async with _fleet(directory, {"POLICY_DIR": str(folder)}, files) as (url, agents):
        token = (directory / ADMIN_TOKEN_FILE).read_text().strip()
        tenant, headers = f"{url}/v1/tenants/{TENANT}", {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(headers=headers) as http:
            (await http.put(tenant, json={"tier": TENANT})).raise_for_status()
            ids = []
            for _ in range(CHANGES):
                created = await http.post(f"{tenant}/keys", json={})
                created.raise_for_status()
                ids.append(created.json()["view"]["id"])
            for id in ids:
                await agents.all_at(f"{id}:{KNOWN}")

            async def revoke(number: int) -> str:
                id = ids[number - 1]
                (await http.delete(f"{tenant}/keys/{id}", params={"reason": "a benchmark"})).raise_for_status()
                return f"{id}:{REVOKED}"

            return await _measured("revoked key", agents, revoke)


async def _by_policy(
    name: str, directory: Path, settings: Mapping[str, str], change: Callable[[str, Mapping[str, str]], Any]
) -> Way:
    async with _fleet(directory, settings, bundle(0)) as (url, agents):

        async def apply(number: int) -> str:
            files = bundle(number)
            await change(url, files)
            return compile_bundle(files).digest()

        return await _measured(name, agents, apply)


@asynccontextmanager
async def _fleet(
    directory: Path, settings: Mapping[str, str], files: Mapping[str, str]
) -> AsyncIterator[tuple[str, Agents]]:
    """Run an etcd, a control plane and the agents until a policy is in force. Yields the URL of the control plane."""
    etcd = await asyncio.to_thread(start_etcd, directory / "etcd")
    server, url = await asyncio.to_thread(control_plane, directory, etcd.endpoint, settings)
    agents = Agents()
    try:
        first = compile_bundle(files)
        await agents.start(etcd.endpoint, directory, sorted(first.regions))
        await agents.all_at(first.digest())
        # No region reports, so a new leader waits for reports for the maximum time before it plans again.
        await asyncio.sleep(SETTLE_S)
        yield url, agents
    finally:
        await agents.stop()
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(etcd.stop)


async def _measured(name: str, agents: Agents, change: Callable[[int], Awaitable[str]]) -> Way:
    """Measure changes.

    Args:
        change: makes the change with a number, and returns what agents report of it.
    """
    print(f"{name}: {CHANGES} changes at {AGENTS} agents", flush=True)
    rng = Random(1)
    every: list[float] = []
    changes: list[Stages] = []
    for number in range(1, CHANGES + 1):
        await asyncio.sleep(1.0 + rng.uniform(0.0, APART_S))
        began = time.time()
        reported = await change(number)
        told_s = time.time() - began
        took = [at - began for at in await agents.all_at(reported)]
        every += took
        changes.append(Stages(round(told_s, 3), round(took[0], 3), round(took[-1], 3)))
    return Way(
        name,
        CHANGES,
        AGENTS,
        round(quantile(every, 0.5) or 0.0, 3),
        round(quantile(every, 0.99) or 0.0, 3),
        round(max(every), 3),
        round(quantile([change.all_agents_s for change in changes], 0.5) or 0.0, 3),
        max(changes, key=lambda change: change.all_agents_s),
    )


async def measure() -> Results:
    """Measure all changes in turn, each with a separate etcd, control plane and agents."""
    machine = this_machine()
    ways = []
    for way in (by_webhook, by_folder, by_revocation):
        with tempfile.TemporaryDirectory(prefix="penstock-propagation-") as directory:
            ways.append(await way(Path(directory)))
    goals = (
        goal("commit to in force at 100 agents, p99, s", GOAL_P99_S, ways[0].p99_s),
        goal("revocation of a key to refused at 100 agents, p99, s", GOAL_P99_S, ways[2].p99_s),
    )
    return Results(machine, tuple(ways), goals)


def bench_propagation() -> None:
    """Measure the time until 100 agents apply a policy change or a revoked key, through a real etcd."""
    allow_many_open_files()
    results = uvloop.run(measure())
    write_results(OUT, results)
    columns: Columns[Way] = (
        ("change", lambda way: way.name),
        ("median s", lambda way: f"{way.median_s:.2f}"),
        ("p99 s", lambda way: f"{way.p99_s:.2f}"),
        ("max s", lambda way: f"{way.max_s:.2f}"),
        ("all agents, median s", lambda way: f"{way.all_agents_median_s:.2f}"),
        ("slowest change: sent s", lambda way: f"{way.slowest.told_s:.2f}"),
        ("first agent s", lambda way: f"{way.slowest.first_agent_s:.2f}"),
        ("all agents s", lambda way: f"{way.slowest.all_agents_s:.2f}"),
    )
    title = "Time from a change until an agent applies it"
    show(columns_table(title, columns, results.ways), goals_table(results.goals))
    print(closing_line(results.machine, OUT))
