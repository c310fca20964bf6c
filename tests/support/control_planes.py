"""Real control planes as processes, and agents that report to them, for tests of the whole control plane."""

from __future__ import annotations

import asyncio
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import msgspec

from adapters.servers.free_ports import LOOPBACK, free_ports
from adapters.servers.process import ServerProcess, find_script
from adapters.servers.readiness import http_ok
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.config_store import ConfigStore, StoreError
from control_plane.planning.report_intake import ReportReceipt
from control_plane.status.status import Status
from lab.server_starting import PORT_TRIES, start_server
from penstock.fleet.counts.request_counts import RequestCounts
from penstock.fleet.endpoint_report import EndpointReport
from penstock.fleet.report import AgentReport, DemandReport
from penstock.planning.plan import RegionPlan
from penstock.rollout.policy_rollout import Phase
from penstock.wire.identity import PATH, BadIdentity, decode_certificate
from tests.support.identities import control_plane_id, write_identity
from tests.support.paths import PLANET
from tests.support.reports import offered, packed, report
from tests.support.wait import PATIENCE_S, found, pauses

REGIONS = ("eu-de", "eu-es", "eu-gb", "jp-tok", "us-east")
TOKEN = "a token that is only for tests".replace(" ", "-")
LEASE_S = 8
"""Lease (s) of the leader, because a busy machine may stop its processes for more than 2 s."""

OPERATOR = {"authorization": f"Bearer {TOKEN}"}

UNKEPT = httpx.Limits(max_keepalive_connections=0)
"""A new connection for each request: a server that was delayed closes idle connections, possibly during a request."""


class ControlPlaneServer(ServerProcess):
    """`penstock serve` on a free port."""

    def __init__(
        self,
        name: str,
        directory: Path,
        etcd_endpoint: str,
        policy_dir: Path = PLANET,
        policy_settings: Mapping[str, str] | None = None,
        fleet: int = 0,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "admin.token").write_text(TOKEN)
        (port,) = free_ports(1)
        self.url = f"http://{LOOPBACK}:{port}"
        settings = {
            "NAME": name,
            "LISTEN": f"{LOOPBACK}:{port}",
            "ETCD_ENDPOINTS": etcd_endpoint,
            "LEADER_LEASE_S": str(LEASE_S),
            **(policy_settings or {"POLICY_DIR": str(policy_dir)}),
            "IDENTITY_DIR": str(write_identity(directory / "identity", control_plane_id(name), fleet)),
            "ADMIN_TOKEN_FILE": str(directory / "admin.token"),
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_")}
        super().__init__(
            name,
            [find_script("penstock"), "serve"],
            log_path=directory / f"{name}.log",
            ready=http_ok(f"{self.url}/livez"),
            ports=(port,),
            env=environment | {f"PENSTOCK_{key}": value for key, value in settings.items()},
        )


@contextmanager
def control_planes(
    names: str,
    directory: Path,
    etcd_endpoint: str,
    policy_dir: Path = PLANET,
    policy_settings: Mapping[str, str] | None = None,
    fleet: int = 0,
    *,
    elected: bool = True,
) -> Iterator[list[ControlPlaneServer]]:
    """Run one control plane for each letter of `names`; `policy_settings` replace `policy_dir`.

    With `elected`, each of them knows a leader: before, requests that need one are answered with 503.
    """

    def start(name: str) -> ControlPlaneServer:
        def make() -> ControlPlaneServer:
            return ControlPlaneServer(name, directory / name, etcd_endpoint, policy_dir, policy_settings, fleet)

        return start_server(make, tries=PORT_TRIES, timeout_s=PATIENCE_S)

    with ThreadPoolExecutor(len(names)) as threads:
        servers = list(threads.map(start, names))
        try:
            if elected:
                list(threads.map(_wait_for_leader, servers))
            yield servers
        finally:
            list(threads.map(ControlPlaneServer.stop, servers))


def _wait_for_leader(server: ControlPlaneServer) -> None:
    deadline = time.monotonic() + PATIENCE_S
    with httpx.Client(headers=OPERATOR, timeout=PATIENCE_S, limits=UNKEPT) as http:
        for pause_s in pauses():
            if http.get(f"{server.url}/v1/status").json()["leader"] is not None:
                return
            assert time.monotonic() < deadline, f"{server.name} knows no leader:\n{server.log_path.read_text()[-2000:]}"
            time.sleep(pause_s)


def is_in(status: Status, phase: Phase, number: int = 2) -> bool:
    """Whether the newest rollout has the given number and phase."""
    return status.rollout is not None and (status.rollout.number, status.rollout.phase) == (number, phase)


class Operator:
    """Reads the status of control planes."""

    def __init__(self) -> None:
        self.http = httpx.AsyncClient(headers=OPERATOR, timeout=PATIENCE_S, limits=UNKEPT)

    async def status(self, server: ControlPlaneServer) -> Status:
        response = await self.http.get(f"{server.url}/v1/status")
        assert response.status_code == 200, response.text
        return msgspec.json.decode(response.content, type=Status)

    async def until(
        self, server: ControlPlaneServer, holds: Callable[[Status], bool], within_s: float = PATIENCE_S
    ) -> Status:
        """Return the first status of `server` for which `holds` returns true."""

        async def look() -> Status | None:
            # A process that is killed or stopped breaks its connections.
            with suppress(httpx.ReadError, httpx.RemoteProtocolError):
                status = await self.status(server)
                if holds(status):
                    return status
            return None

        return await found(look, within_s)

    async def leader_among(
        self, servers: Sequence[ControlPlaneServer], besides: int = 0, within_s: float = PATIENCE_S
    ) -> tuple[ControlPlaneServer, int]:
        """Return the leader among `servers` and its epoch, which differs from `besides`."""

        async def look() -> tuple[ControlPlaneServer, int] | None:
            for server in servers:
                status = await self.status(server)
                if status.leading and status.epoch != besides:
                    return server, status.epoch
            return None

        return await found(look, within_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.aclose()


class Reporting(ABC):
    """Sends reports in the background to the leader that the receipts name."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self._url = self._urls[0]
        self._certificates: dict[str, bytes] = {}
        self._seq = 0
        self._http = httpx.AsyncClient(timeout=2.0)
        self._task: asyncio.Task[None] | None = None

    @abstractmethod
    async def _run(self) -> None:
        """Send reports until cancelled."""

    async def _post(self, reports: Iterable[AgentReport]) -> None:
        """Send reports concurrently, as agents do, so that a late report delays no other report."""
        answers = await asyncio.gather(*(self._leader_after(self._url, agent_report) for agent_report in reports))
        leaders = {leader for leader in answers if leader is not None}
        if not leaders:
            self._url = self._urls[(self._urls.index(self._url) + 1) % len(self._urls)]
        elif self._url not in leaders:
            self._url = leaders.pop()

    async def _leader_after(self, url: str, report: AgentReport) -> str | None:
        """Send one report and return the leader that its receipt names; None without a receipt."""
        try:
            if url not in self._certificates:
                self._certificates[url] = decode_certificate((await self._http.get(url + PATH)).content)
            body, headers = packed(report, self._certificates[url])
            response = await self._http.post(f"{url}/v1/reports", content=body, headers=dict(headers))
        except (httpx.HTTPError, BadIdentity):
            return None
        if response.status_code == 202:
            receipt = msgspec.json.decode(response.content, type=ReportReceipt)
            if not receipt.leading and receipt.leader in self._urls:
                return receipt.leader
        return url

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task
        await self._http.aclose()


class ApplyingAgents(Reporting):
    """One agent per region, which applies and reports plans; a test selects regions that reject plans."""

    def __init__(self, store: ConfigStore, urls: Sequence[str]) -> None:
        super().__init__(urls)
        self._store = store
        self.applied: dict[str, str] = {}
        """Digest of the applied policy, by region."""
        self.refuses: set[str] = set()
        """Regions that reject new plans."""
        self.slow_from: set[str] = set()
        """Regions for which traffic from other regions takes ten times as long."""
        self.answers = dict.fromkeys(REGIONS, RequestCounts())

    async def _run(self) -> None:
        while True:
            self._seq += 1
            with suppress(StoreError, httpx.HTTPError):
                await self._report()
            await asyncio.sleep(0.2)

    async def _report(self) -> None:
        plans = {
            item.key.removeprefix(keys.PLANS): decode(item.value, RegionPlan)
            for item in (await self._store.list(keys.PLANS)).items
        }
        reports = []
        for region in REGIONS:
            reported = plans[region].policy_digest if region in plans else ""
            refused = region in self.refuses and reported != self.applied.get(region, reported)
            if not refused:
                self.applied[region] = reported
            far = any(
                arc.server in self.slow_from - {region}
                for entry in (plans[region].classes if region in plans else ())
                for arc in entry.arcs
            )
            self.answers[region] += RequestCounts(10, 0, 10, 10.0 if far else 1.0)
            sent = msgspec.structs.replace(
                report(region, offered(10.0, *REGIONS), seq=self._seq),
                policy_digest=self.applied[region],
                refused_digest=reported if refused else "",
                refused_plan="a test says so" if refused else "",
                request_counts=self.answers[region],
            )
            reports.append(sent)
        await self._post(reports)


class Agents(Reporting):
    """One agent per region, which reports four times per second to the leader that the receipts name."""

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(urls)
        self.demand: dict[str, tuple[DemandReport, ...]] = {}
        """Demand of clients, by region."""
        self.endpoints: dict[str, tuple[EndpointReport, ...]] = {}
        """Endpoints that agents report, by region; a region without an entry reports no list."""
        self.applied: Callable[[str], tuple[int, int]] = lambda region: (0, 0)
        """Returns epoch and generation of the plan that a region's agent reports as applied."""

    def report_of(self, region: str) -> AgentReport:
        """The report of a region's agent, without the applied plan."""
        made = report(region, *self.demand.get(region, ()), seq=self._seq)
        return msgspec.structs.replace(made, endpoints=self.endpoints.get(region))

    async def _run(self) -> None:
        while True:
            self._seq += 1
            await self._post(self._applying(region) for region in REGIONS)
            await asyncio.sleep(0.25)

    def _applying(self, region: str) -> AgentReport:
        epoch, generation = self.applied(region)
        return msgspec.structs.replace(self.report_of(region), plan_epoch=epoch, plan_generation=generation)


def roll_out_at_once(bundle: Path) -> None:
    """Write rollout rules that put changes of a bundle in force immediately."""
    (bundle / "rollout.yaml").write_bytes(rollout_rules())


def rollout_rules(**fields: object) -> bytes:
    """Rollout rules of a bundle without stages, except for `fields`."""
    usual: dict[str, object] = {
        "shadow_s": 0,
        "max_moved_share": 1,
        "canary_regions": "[]",
        "canary_s": 0,
        "acknowledge_timeout_s": 15,
        "min_requests": 0,
        "max_failure_increase": 0.05,
        "max_latency_factor": 10,
        "watch_s": 0,
    }
    lines = [
        "apiVersion: penstock/v1",
        "kind: Rollout",
        *(f"{name}: {value}" for name, value in (usual | fields).items()),
    ]
    return "".join(f"{line}\n" for line in lines).encode()
