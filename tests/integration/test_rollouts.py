"""Rollouts by real control planes on real etcd, of policy from a real git repository, to agents that may reject it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.signed_store import SignedStore
from control_plane.cli.main import app
from control_plane.status.status import Status
from penstock.planning.plan import RegionPlan
from penstock.rollout.policy_rollout import Phase
from tests.support.control_planes import (
    PLANET,
    TOKEN,
    ApplyingAgents,
    ControlPlaneServer,
    Operator,
    control_planes,
    is_in,
    rollout_rules,
)
from tests.support.git_repositories import PolicyRepository, bundle_files
from tests.support.wait import found, until_async

SPILLOVER = (PLANET / "spillover.yaml").read_bytes()


def rules(canary_s: int) -> bytes:
    return rollout_rules(shadow_s=1, canary_regions="[eu-es]", canary_s=canary_s, acknowledge_timeout_s=60, watch_s=3)


RULES = rules(12)
UNTIL_PROMOTED = rules(3600)


def files(target: str = "0.8", rules: bytes = RULES) -> dict[str, bytes]:
    return bundle_files(PLANET, spillover=SPILLOVER.replace(b"0.8", target.encode()), rollout=rules)


@pytest.fixture
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> PolicyRepository:
    """A repository with a policy, whose rules of rollouts are the parameter."""
    origin = PolicyRepository(tmp_path / "policy.git")
    origin.commit(files(rules=getattr(request, "param", RULES)))
    return origin


@pytest.fixture
def servers(own_etcd: EtcdServer, repository: PolicyRepository, tmp_path: Path) -> Iterator[list[ControlPlaneServer]]:
    settings = {"POLICY_REPOSITORY": str(repository.path), "POLICY_POLL_S": "2"}
    with control_planes("ab", tmp_path, own_etcd.endpoint, policy_settings=settings) as both:
        yield both


async def reported(store: SignedStore) -> dict[str, str]:
    """The policy commit of each region's plan."""
    plans = [decode(item.value, RegionPlan) for item in (await store.list(keys.PLANS)).items]
    return {plan.region: plan.provenance.commit for plan in plans if plan.provenance is not None}


async def all_reported(store: SignedStore, commit: str) -> bool:
    return set((await reported(store)).values()) == {commit}


async def poisoned(
    repository: PolicyRepository, operator: Operator, leader: ControlPlaneServer, before: Status
) -> None:
    """Push commits that cannot be used: each is recorded with its errors, and changes nothing."""
    poisons: list[dict[str, bytes]] = [
        files(""),
        {**files(), "again.yaml": SPILLOVER},
        {**files(), "huge.yaml": b"x" * (10 << 20)},
        {**files(), "bomb.yaml": b"a: &a [1]\nb: [*a, *a]\n"},
    ]
    for poison in poisons:
        commit = repository.commit(poison)
        await operator.until(
            leader,
            lambda status, commit=commit: (
                status.policy.refused_provenance is not None and status.policy.refused_provenance.commit == commit
            ),
        )

        async def recorded(commit: str = commit) -> Any:
            newest = (await operator.http.get(f"{leader.url}/v1/policies")).json()["items"][0]
            return newest if newest["provenance"]["commit"] == commit else None

        assert (await found(recorded))["errors"]
    after = await operator.status(leader)
    assert (after.rollout, after.policy.digest) == (before.rollout, before.policy.digest)


async def test_a_push_is_rolled_out_in_stages_and_invalid_commits_change_nothing(
    servers: list[ControlPlaneServer], repository: PolicyRepository, store: SignedStore, operator: Operator
) -> None:
    leader, _ = await operator.leader_among(servers)
    async with ApplyingAgents(store, [server.url for server in servers]) as agents:
        before = await operator.until(leader, lambda status: is_in(status, Phase.DONE, 1))
        first = before.policy.provenance
        assert first is not None
        await poisoned(repository, operator, leader, before)
        second = repository.commit(files("0.7"), message=b"Fill pools less")
        await operator.until(leader, lambda status: is_in(status, Phase.CANARY))
        await operator.until(leader, lambda status: len(set(agents.applied.values())) == 2)
        assert await reported(store) == dict.fromkeys(agents.applied, first.commit) | {"eu-es": second}
        shown = (await operator.http.get(f"{leader.url}/v1/rollouts/current")).json()
        assert shown["rollout"]["provenance"]["subject"] == "Fill pools less"
        assert [(change["kind"], change["field"], change["after"]) for change in shown["changes"]] == [
            ("Spillover", "target_utilisation", 0.7)
        ]
        assert shown["limits"]["canary_regions"] == ["eu-es"]
        assert [judged["region"] for judged in shown["evidence"] if judged["runs_candidate"]] == ["eu-es"]
        await operator.until(leader, lambda status: is_in(status, Phase.DONE))
        assert set((await reported(store)).values()) == {second}

        async def all_apply_it() -> bool:
            shown = (await operator.http.get(f"{leader.url}/v1/rollouts/current")).json()
            return {agent["in_force"] for agent in shown["agents"]} == {shown["rollout"]["stable"]}

        await until_async(all_apply_it)


async def test_a_new_leader_continues_a_rollout_and_the_old_one_changes_nothing(
    servers: list[ControlPlaneServer], repository: PolicyRepository, store: SignedStore, operator: Operator
) -> None:
    leader, epoch = await operator.leader_among(servers)
    (other,) = [server for server in servers if server is not leader]
    async with ApplyingAgents(store, [server.url for server in servers]):
        await operator.until(leader, lambda status: is_in(status, Phase.DONE, 1))
        second = repository.commit(files("0.7"))
        began = await operator.until(leader, lambda status: is_in(status, Phase.CANARY))
        leader.pause()
        await operator.leader_among([other], besides=epoch)
        middle = await operator.until(other, lambda status: status.rollout is not None and status.rollout.number == 2)
        assert middle.rollout is not None
        assert began.rollout is not None
        assert middle.rollout.began_at == began.rollout.began_at
        leader.resume()
        await operator.until(other, lambda status: is_in(status, Phase.DONE))
        assert set((await reported(store)).values()) == {second}


@pytest.mark.long
async def test_a_rejection_rolls_back_although_the_leader_fails(
    servers: list[ControlPlaneServer], repository: PolicyRepository, store: SignedStore, operator: Operator
) -> None:
    leader, epoch = await operator.leader_among(servers)
    (other,) = [server for server in servers if server is not leader]
    async with ApplyingAgents(store, [server.url for server in servers]) as agents:
        first = (await operator.until(leader, lambda status: is_in(status, Phase.DONE, 1))).policy.provenance
        assert first is not None
        await operator.until(leader, lambda status: len(agents.applied) == 5 and all(agents.applied.values()))
        leader.kill()
        agents.refuses = {"eu-es"}
        repository.commit(files("0.7"))
        await operator.leader_among([other], besides=epoch)
        after = await operator.until(other, lambda status: is_in(status, Phase.ROLLED_BACK))
        assert after.rollout is not None
        assert after.rollout.why == "eu-es/one rejects it: a test says so"
        await until_async(lambda: all_reported(store, first.commit))
        third = repository.commit(files("0.6"))
        agents.refuses = set()
        await operator.until(other, lambda status: is_in(status, Phase.DONE, 3))
        assert set((await reported(store)).values()) == {third}


@pytest.mark.parametrize("repository", [UNTIL_PROMOTED], indirect=True, ids=["long canary"])
async def test_an_operator_controls_a_rollout_from_the_command_line(
    servers: list[ControlPlaneServer],
    repository: PolicyRepository,
    store: SignedStore,
    operator: Operator,
    tmp_path: Path,
) -> None:
    leader, _ = await operator.leader_among(servers)
    (tmp_path / "token").write_text(TOKEN)
    environment = {"PENSTOCK_URL": leader.url, "PENSTOCK_ADMIN_TOKEN_FILE": str(tmp_path / "token"), "COLUMNS": "200"}

    async def penstock(*arguments: str) -> tuple[int, str]:
        done = await asyncio.to_thread(CliRunner(env=environment).invoke, app, arguments, catch_exceptions=False)
        return done.exit_code, done.stdout + done.stderr

    async with ApplyingAgents(store, [server.url for server in servers]):
        first = await operator.until(leader, lambda status: is_in(status, Phase.DONE, 1))
        assert first.policy.digest is not None
        repository.commit(files("0.7", UNTIL_PROMOTED), message=b"Fill pools less")
        await operator.until(leader, lambda status: is_in(status, Phase.CANARY))
        code, reported = await penstock("rollout", "halt", "--reason", "let me look")
        assert (code, "canary_held" in reported) == (0, True)
        code, reported = await penstock("rollout", "show")
        assert code == 0
        assert "let me look" in reported
        assert "Spillover target_utilisation: 0.8 -> 0.7" in reported
        assert "Fill pools less" in reported
        code, reported = await penstock("rollout", "promote", "--reason", "it is good")
        assert code == 0
        await operator.until(leader, lambda status: is_in(status, Phase.DONE))
        code, reported = await penstock("policy", "revisions")
        assert (code, reported.count("Penstock Tests")) == (0, 2)
        code, reported = await penstock("policy", "rollback", first.policy.digest[:8], "--reason", "it was not")
        assert (code, "done" in reported) == (0, True)
        assert first.policy.provenance is not None
        await until_async(lambda: all_reported(store, first.policy.provenance.commit))  # type: ignore[union-attr]
        code, reported = await penstock("policy", "rollback", "abc123", "--reason", "x")
        assert (code, "no revision has a policy with the digest prefix 'abc123'" in reported) == (2, True)
        code, reported = await penstock("rollout", "resume", "--reason", "x")
        assert (code, "rollout 3 is done: it cannot resume" in reported) == (1, True)
        code, reported = await penstock("rollout", "list")
        assert (code, "it was not" in reported) == (0, True)
