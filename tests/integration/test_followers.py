"""Two control planes on a real etcd: the follower, without reports, responds as the leader, or with a reason."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from adapters.etcd.etcd_store import EtcdStore
from adapters.servers.etcd import EtcdServer
from adapters.servers.free_ports import LOOPBACK
from adapters.store import keys
from adapters.store.codec import encode
from adapters.store.config_store import Delete, Put
from adapters.store.members import Member
from adapters.store.signed_store import SignedStore
from penstock.fleet.report import PeerReport
from penstock.health.region_health import RegionState
from tests.support.control_planes import PLANET, REGIONS, Agents, ControlPlaneServer, Operator, control_planes
from tests.support.identities import control_plane_keyring
from tests.support.reports import MODEL, endpoint, offered, report
from tests.support.wait import PATIENCE_S

DRAIN = {"reason": "new disks", "expires_in_s": 7200}
EXPLAIN = {"origin": "eu-de", "model": MODEL, "tenant": "personal", "country": "DE"}


class HalfOfEurope(Agents):
    """Agents of every region; Madrid's has no ready endpoint, and the others cannot reach Madrid."""

    def report_of(self, region: str) -> Any:
        reported = report(region, *self.demand.get(region, ()), seq=self._seq, ready=0 if region == "eu-es" else 4)
        lost = () if region == "eu-es" else (PeerReport("eu-es", RegionState.FAILED, 10.0),)
        return msgspec.structs.replace(reported, endpoints=(endpoint("gpu-0"), endpoint("gpu-1")), peers=lost)


async def pair(operator: Operator, servers: list[ControlPlaneServer]) -> tuple[ControlPlaneServer, ControlPlaneServer]:
    """The leader, and the follower once it has the leader's address."""
    leader, _ = await operator.leader_among(servers)
    (follower,) = [server for server in servers if server is not leader]
    await operator.until(follower, lambda status: status.leader is not None)
    return leader, follower


async def leader_has_reports(operator: Operator, leader: ControlPlaneServer) -> None:
    """Return once the leader has judged every region and planned."""
    await operator.until(
        leader,
        lambda status: (
            status.plan is not None and all(region.state is not RegionState.UNKNOWN for region in status.regions)
        ),
    )


async def followed_states(operator: Operator, server: ControlPlaneServer) -> dict[str, str]:
    """The states of the regions by the first status that a control plane streams."""
    async with operator.http.stream("GET", f"{server.url}/v1/events", params={"status": True}) as response:
        async for line in response.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "data" and "parts" in (data := msgspec.json.decode(value)):
                return {name: part["state"] for name, part in data["parts"].items() if name.startswith("regions/")}
    raise EOFError


IN_MOTION = {"at", "generation", "plan_generation", "chosen", "requests_per_s"}
"""Fields that change with every report or plan."""


def aged(value: Any) -> Any:
    """A response without the fields that change with every report or name the responder."""
    if isinstance(value, dict):
        return {
            key: aged(member) for key, member in value.items() if not key.endswith("age_s") and key not in IN_MOTION
        }
    return [aged(item) for item in value] if isinstance(value, list) else value


async def guarded(operator: Operator, leader: ControlPlaneServer, follower: ControlPlaneServer) -> None:
    """Guard rails use the agents' reports on every control plane."""
    for path, body in (
        ("/v1/regions/eu-de/drain", DRAIN),
        ("/v1/overrides", DRAIN | {"kind": "fail_over", "region": "eu-de"}),
    ):
        refused = await operator.http.post(follower.url + path, json=body)
        # Policy permits Madrid, which has no ready endpoint.
        assert (refused.status_code, refused.json()["guard"]) == (409, True), refused.text
        assert "eu-de+eu-es" in [class_["residency"] for class_ in refused.json()["classes"]]
    set_ = await operator.http.post(follower.url + "/v1/regions/jp-tok/drain", json=DRAIN)
    assert set_.status_code == 201, set_.text
    shown = await operator.http.get(leader.url + set_.headers["location"])
    assert shown.headers["etag"] == set_.headers["etag"]
    where = f"{follower.url}{set_.headers['location']}?reason=done"
    lifted = await operator.http.delete(where, headers={"if-match": set_.headers["etag"]})
    assert lifted.status_code == 200
    entries = (await operator.http.get(follower.url + "/v1/audit")).json()["items"]
    assert [(entry["action"], entry["caller"]) for entry in entries] == [
        ("override.lift", "admin-token"),
        ("override.drain", "admin-token"),
    ]


async def without_etcd_the_last_leader_responds(
    operator: Operator, leader: ControlPlaneServer, follower: ControlPlaneServer
) -> None:
    """Without etcd, both respond by the reports of the last leader."""
    await operator.until(leader, lambda status: not status.leading)
    for server in (leader, follower):
        page = (await operator.http.get(server.url + "/v1/regions")).json()
        assert (page["seen_by"]["name"], page["seen_by"]["leading"]) == (
            (await operator.status(leader)).name,
            False,
        )
        assert all(region["report_age_s"] < PATIENCE_S for region in page["items"])
        assert all(region["pools"] for region in page["items"])


async def test_leader_and_follower_respond_alike_with_and_without_etcd(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    with control_planes("ab", tmp_path, own_etcd.endpoint) as servers:
        leader, follower = await pair(operator, servers)
        async with HalfOfEurope([leader.url]) as agents:
            agents.demand = {"eu-de": (offered(10.0, "eu-de", "eu-es"),)}
            await leader_has_reports(operator, leader)
            headers = {"x-penstock-hop": "x", "idempotency-key": "x"}
            for method, path, body in (
                ("GET", "/v1/regions", None),
                ("GET", "/v1/regions?limit=2", None),
                ("GET", "/v1/regions/eu-de", None),
                ("GET", "/v1/regions/atlantis", None),
                ("GET", "/v1/regions?nonsense=1", None),
                ("GET", "/v1/endpoints", None),
                ("GET", "/v1/agents?region=jp-tok", None),
                ("GET", "/v1/capacity/recommendations?model=none", None),
                ("GET", "/v1/rollouts/current", None),
                ("POST", "/v1/explain", EXPLAIN),
                ("POST", "/v1/explain", {"origin": 7}),
                ("GET", f"/v1/steer?country=DE&tenant=personal&model={MODEL}", None),
                ("POST", "/v1/what-if", {"lost": ["us-east"]}),
                # Refused by both because of its Idempotency-Key, which the other requests do not need.
                ("POST", "/v1/regions/us-east/drain", DRAIN),
            ):
                theirs, ours = [
                    await operator.http.request(method, server.url + path, json=body, headers=headers)
                    for server in (leader, follower)
                ]
                assert (ours.status_code, ours.headers["content-type"]) == (
                    theirs.status_code,
                    theirs.headers["content-type"],
                ), (path, ours.text)
                assert (ours.status_code == 400) is (body is DRAIN), (path, ours.text)
                if path == "/v1/endpoints":
                    assert len(ours.json()["items"]) == 2 * len(REGIONS)
                if "what-if" not in path:
                    assert aged(ours.json()) == aged(theirs.json()), path
                assert "reports any pool" not in ours.text, "what-if knew of no fleet"
            theirs, ours = await operator.status(leader), await operator.status(follower)
            assert (ours.leading, ours.fleet_seen_by, ours.fleet_problem) == (False, theirs.name, "")
            assert ours.name != theirs.name
            assert [(region.name, region.state, bool(region.pools)) for region in ours.regions] == [
                (region.name, region.state, bool(region.pools)) for region in theirs.regions
            ]
            assert [agent.report_age_s is None for agent in ours.agents] == [False] * len(REGIONS)
            assert await followed_states(operator, follower) == {
                f"regions/{region.name}": region.state.value for region in theirs.regions
            }
            await guarded(operator, leader, follower)
            own_etcd.kill()
            await without_etcd_the_last_leader_responds(operator, leader, follower)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address that refuses connections, whose port no other process can take."""
    with socket.socket() as unheard:
        unheard.bind((LOOPBACK, 0))
        yield f"{LOOPBACK}:{unheard.getsockname()[1]}"


async def test_an_unreachable_leader_is_named(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path, nobody: str
) -> None:
    ghost = Member("ghost", f"http://{nobody}")
    store = SignedStore(EtcdStore([own_etcd.endpoint], call_timeout_s=20), control_plane_keyring("ghost"))
    await store.commit((), (Put(keys.LEADER, encode(ghost)),))
    with control_planes("a", tmp_path, own_etcd.endpoint) as (server,):
        await operator.until(server, lambda status: status.leader is not None)
        for method, path, body in (
            ("GET", "/v1/regions", None),
            ("POST", "/v1/explain", EXPLAIN),
            ("POST", "/v1/regions/eu-de/drain", DRAIN | {"force": True}),
        ):
            refused = await operator.http.request(method, server.url + path, json=body)
            assert (refused.status_code, refused.headers["content-type"]) == (503, "application/problem+json")
            assert refused.json()["leader"] == msgspec.to_builtins(ghost)
            assert "ghost" in refused.json()["detail"]
            assert "retry-after" in refused.headers
            assert (await httpx.AsyncClient().request(method, server.url + path, json=body)).status_code == 401
        assert (await operator.http.get(server.url + "/v1/overrides")).json()["items"] == []
        status = await operator.status(server)
        assert (status.fleet_seen_by, "ghost" in status.fleet_problem) == ("a", True)
        steered = await operator.http.get(server.url + "/v1/steer?country=DE&tenant=personal")
        assert {entry["state"] for entry in steered.json()["entries"]} == {"unknown"}
        await store.commit((), (Delete(keys.LEADER),))
        await operator.until(server, lambda status: status.leading and not status.fleet_problem)
        assert (await operator.http.get(server.url + "/v1/regions")).status_code == 200
    await store.close()


async def test_without_a_leader_requests_are_refused(own_etcd: EtcdServer, operator: Operator, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with control_planes("a", tmp_path, own_etcd.endpoint, empty, elected=False) as (server,):
        status = await operator.until(server, lambda status: status.store.up)
        assert (status.leader, status.fleet_problem) == (None, "no control plane leads")
        for path in ("/v1/regions", "/v1/agents"):
            refused = await operator.http.get(server.url + path)
            assert (refused.status_code, refused.json()["leader"]) == (503, None)
            assert "no control plane leads" in refused.json()["detail"]


async def test_the_leader_takes_the_role_of_a_caller_from_the_control_plane_that_authenticated_it(
    own_etcd: EtcdServer, operator: Operator, tmp_path: Path
) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(f"- {{name: duty, sha256: {sha256(b'duty desk').hexdigest()}, role: viewer}}")
    settings = {"POLICY_DIR": str(PLANET), "API_KEYS_FILE": str(file)}
    with control_planes("a", tmp_path / "a", own_etcd.endpoint) as (leader,):
        await operator.leader_among([leader])
        with control_planes("b", tmp_path / "b", own_etcd.endpoint, policy_settings=settings) as (follower,):
            await operator.until(follower, lambda status: status.leader is not None)
            duty = {"authorization": "Bearer duty desk"}
            for path in ("/v1/regions", "/v1/whoami"):
                assert (await operator.http.get(follower.url + path, headers=duty)).status_code == 200
            assert (await operator.http.get(leader.url + "/v1/regions", headers=duty)).status_code == 401
            drain = DRAIN | {"force": True}
            refused = await operator.http.post(follower.url + "/v1/regions/jp-tok/drain", json=drain, headers=duty)
            assert refused.status_code == 403, refused.text
