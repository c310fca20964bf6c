"""Control planes as processes on a real etcd: elections, leaders killed and paused, plans, and etcd outages."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.config_store import Changed
from adapters.store.signed_store import SignedStore
from control_plane.planning.report_intake import MAX_REPORT_BYTES
from control_plane.status.status import Status
from penstock.planning.plan import RegionPlan
from tests.support.control_planes import (
    LEASE_S,
    OPERATOR,
    REGIONS,
    UNKEPT,
    Agents,
    ControlPlaneServer,
    Operator,
    control_planes,
    roll_out_at_once,
)
from tests.support.paths import PLANET
from tests.support.reports import offered, packed, report
from tests.support.stores import Following
from tests.support.wait import PATIENCE_S

EU = ("eu-de", "eu-es")


def epochs(changes: list[Changed]) -> set[int]:
    """Epochs of the stored plans."""
    written = [change.now for change in changes if change.key.startswith(keys.PLANS) and change.now is not None]
    return {decode(item.value, RegionPlan).epoch for item in written}


def shares(status: Status, origin: str) -> dict[str, float]:
    return {arc.server: arc.share for arc in status.arcs if arc.origin == origin}


def processor_s(pid: int) -> float:
    """Processor time (s) that a process has used: proc(5), utime and stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def granted_leases_s(etcd: EtcdServer) -> set[int]:
    """Times to live (s) with which the leases of etcd were granted, read through its HTTP gateway."""
    async with httpx.AsyncClient(base_url=f"http://{etcd.endpoint}/v3/lease", timeout=PATIENCE_S) as http:
        leases = (await http.post("/leases", json={})).json()["leases"]
        answers = await asyncio.gather(*(http.post("/timetolive", json={"ID": lease["ID"]}) for lease in leases))
    return {int(answer.json()["grantedTTL"]) for answer in answers if "grantedTTL" in answer.json()}


async def last_event(
    operator: Operator, server: ControlPlaneServer, holds: Callable[[str, Any], bool], after: str = "0-0"
) -> str:
    """Return the id of the first event that satisfies `holds`. After an id, no event may be missing."""
    name, id_ = "", ""
    async with (
        asyncio.timeout(PATIENCE_S),
        operator.http.stream("GET", f"{server.url}/v1/events", headers={"last-event-id": after}) as response,
    ):
        async for line in response.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                id_ = value
            elif field == "event":
                name = value
                assert after == "0-0" or name != "missed"
            elif field == "data" and name != "missed" and holds(name, json.loads(value)["data"]):
                return id_
    raise EOFError


@pytest.mark.long
async def test_leadership_passes_on_after_a_kill_and_after_a_stop(
    own_etcd: EtcdServer, store: SignedStore, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("abc", tmp_path, own_etcd.endpoint) as servers:
        first, epoch = await operator.leader_among(servers)
        for server in servers:
            status = await operator.until(server, lambda status: status.leader is not None)
            assert status.leader is not None
            assert status.leader.url == first.url
            assert status.leading == (server is first)
        assert LEASE_S in await granted_leases_s(own_etcd)
        async with (
            Agents([server.url for server in servers]) as agents,
            Following(store, keys.ROOT) as following,
        ):
            # The first step of the journal is then that of a plan without demand.
            await last_event(operator, first, lambda kind, _: kind == "plan")
            agents.demand = {"eu-de": (offered(10.0, *EU),)}
            await operator.until(first, lambda status: shares(status, "eu-de") == {"eu-de": 1.0})
            seen = await last_event(operator, first, lambda kind, data: kind == "plan" and bool(data["changes"]))
            first.kill()
            rest = [server for server in servers if server is not first]
            second, next_epoch = await operator.leader_among(rest, besides=epoch)
            assert next_epoch > epoch
            await operator.until(second, lambda status: status.plan is not None and status.plan.epoch == next_epoch)
            await following.until(lambda: next_epoch in epochs(following.changes))
            assert shares(await operator.status(second), "eu-de") == {"eu-de": 1.0}
            assert epochs(following.changes) == {epoch, next_epoch}
            generations = [
                decode(change.now.value, RegionPlan).generation
                for change in following.changes
                if change.key == keys.plan("eu-de") and change.now is not None
            ]
            assert generations == sorted(generations)
            leaders = {epoch: first.name, next_epoch: second.name}
            for server in rest:
                # The stream resumes at another control plane without a gap.
                await last_event(
                    operator, server, lambda kind, data: (kind, data.get("epoch")) == ("plan", next_epoch), after=seen
                )
                steps = (await operator.http.get(f"{server.url}/v1/plans")).json()["items"]
                assert {step["epoch"]: step["leader"] for step in steps} == leaders
                params = {"before": steps[-1]["generation"]}
                moved = (await operator.http.get(f"{server.url}/v1/plans/diff", params=params)).json()["changes"]
                assert [(change["origin"], change["server"], change["after"]) for change in moved] == [
                    ("eu-de", "eu-de", 1.0)
                ]

            (third,) = [server for server in rest if server is not second]
            stopping = asyncio.create_task(asyncio.to_thread(second.stop, PATIENCE_S))
            await operator.leader_among([third], besides=next_epoch)
            await stopping
            assert second.returncode == 0
            assert b"Traceback" not in second.log_path.read_bytes()


async def test_a_leader_that_was_paused_changes_nothing_after_another_took_over(
    own_etcd: EtcdServer, store: SignedStore, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("ab", tmp_path, own_etcd.endpoint) as servers:
        paused, epoch = await operator.leader_among(servers)
        (successor,) = [server for server in servers if server is not paused]
        async with Agents([paused.url]) as agents:
            # A surge, so that the paused leader is in the middle of moving shares when it wakes.
            agents.demand = {"eu-de": (offered(1000.0, *EU),)}
            await operator.until(paused, lambda status: len(shares(status, "eu-de")) > 1)
            paused.pause()
        _, next_epoch = await operator.leader_among([successor])
        await operator.until(successor, lambda status: status.plan is not None and status.plan.epoch == next_epoch)
        async with Following(store, keys.ROOT) as following:
            known = len(following.changes)
            paused.resume()
            woken = await operator.until(paused, lambda status: status.role == "follower")
            assert woken.epoch == 0
            # Two further plans of the new leader leave the paused one enough time to write.
            await operator.until(successor, lambda status: status.plan is not None and status.plan.age_s < 1.0)
            await asyncio.sleep(1.0)
            after = following.changes[known:]
            assert epochs(after) <= {next_epoch}
            assert not [change for change in after if change.key == keys.LEADER]
        assert (await operator.status(successor)).epoch == next_epoch
        assert next_epoch > epoch


async def test_bad_reports_change_nothing_and_the_plan_follows_the_others(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("a", tmp_path, own_etcd.endpoint) as (server,):
        url = f"{server.url}/v1/reports"
        body, headers = packed(report("eu-de"), "a")
        poison, poison_headers = packed(report("eu-de", offered(-1.0, *EU)), "a")
        async with httpx.AsyncClient(timeout=PATIENCE_S, limits=UNKEPT) as http:
            answers = [
                await http.post(url, content=body),
                await http.post(url, content=body + b" ", headers=headers),
                await http.post(url, content=poison, headers=poison_headers),
                await http.post(url, content=b"x" * (MAX_REPORT_BYTES + 1), headers=headers),
            ]
        assert [answer.status_code for answer in answers] == [401, 401, 422, 413]
        assert all(answer.headers["content-type"] == "application/problem+json" for answer in answers)
        assert (await operator.status(server)).agents == ()
        metrics = (await operator.http.get(f"{server.url}/metrics", headers=OPERATOR)).text
        assert 'penstock_reports_total{outcome="bad_signature",region="other"} 2.0' in metrics

        async with Agents([server.url]) as agents:
            agents.demand = {"eu-de": (offered(10.0, *EU),)}
            await operator.until(server, lambda status: shares(status, "eu-de") == {"eu-de": 1.0})
            agents.demand = {"eu-de": (offered(160.0, *EU),)}
            surge = await operator.until(server, lambda status: shares(status, "eu-de").get("eu-es", 0.0) > 0.4)
            assert shares(surge, "eu-de").keys() == set(EU)
            agents.demand = {"eu-de": (offered(10.0, *EU),)}
            await operator.until(server, lambda status: shares(status, "eu-de") == {"eu-de": 1.0})


async def test_a_bad_policy_folder_leaves_the_last_good_policy_in_force_even_after_a_restart(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(PLANET, tmp_path / "bundle"))
    roll_out_at_once(bundle)
    spillover = bundle / "spillover.yaml"
    good = spillover.read_text()
    with control_planes("a", tmp_path, own_etcd.endpoint, bundle) as (server,):
        before = await operator.until(server, lambda status: status.plan is not None)
        spillover.write_text(good.replace("0.8", "eight"))
        refused = await operator.until(server, lambda status: bool(status.policy.refused))
        assert "spillover.yaml:4: target_utilisation" in refused.policy.refused[0]
        assert refused.policy.digest == before.policy.digest

        await asyncio.to_thread(server.restart, PATIENCE_S)
        restarted = await operator.until(server, lambda status: status.leading and status.policy.digest is not None)
        assert (restarted.policy.digest, restarted.policy.origin) == (before.policy.digest, "store")
        assert restarted.policy.refused

        spillover.write_text(good.replace("0.8", "0.7"))
        mended = await operator.until(
            server, lambda status: status.plan is not None and status.plan.policy_digest != before.policy.digest
        )
        assert mended.policy.refused == ()
        assert mended.plan is not None
        assert mended.plan.policy_digest == mended.policy.digest


async def test_without_etcd_the_control_plane_is_read_only_and_recovers(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("ab", tmp_path, own_etcd.endpoint) as servers:
        await operator.leader_among(servers)
        async with Agents([server.url for server in servers]) as agents:
            agents.demand = {"eu-de": (offered(10.0, *EU),)}
            for server in servers:
                await operator.until(server, lambda status: shares(status, "eu-de") == {"eu-de": 1.0})
            own_etcd.kill()
            killed_at = time.monotonic()
            for server in servers:
                away = await operator.until(server, lambda status: not status.store.up and not status.leading)
                assert shares(away, "eu-de") == {"eu-de": 1.0}
                assert len(away.regions) == len(REGIONS)
                ready = await operator.http.get(f"{server.url}/readyz")
                assert ready.status_code == 503
                assert "the store does not answer" in ready.json()["detail"]
            # The last leader in the agents' receipts still accepts reports.
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    statuses = [await operator.status(server) for server in servers]
                    away_s = time.monotonic() - killed_at
                    if min(age for status in statuses for age in report_ages(status)) < away_s - 1.0:
                        break

            await asyncio.to_thread(own_etcd.restart, PATIENCE_S)
            leader, epoch = await operator.leader_among(servers)
            await operator.until(leader, lambda status: status.plan is not None and status.plan.epoch == epoch)
            for server in servers:
                await operator.until(server, lambda status: status.store.up and status.leader is not None)
            # A report that came late is a failure of its region, which regains its share on a ramp.
            await operator.until(leader, lambda status: shares(status, "eu-de") == {"eu-de": 1.0})


def report_ages(status: Status) -> list[float]:
    return [agent.report_age_s for agent in status.agents if agent.report_age_s is not None]
