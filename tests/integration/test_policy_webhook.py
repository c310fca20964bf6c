"""A control plane that serves policy from a git repository on real etcd; a webhook reports pushes to it."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from adapters.etcd.etcd_store import EtcdStore
from adapters.files.secret_file import BadSecret
from adapters.servers.etcd import EtcdServer
from adapters.store import keys
from adapters.store.codec import decode
from adapters.store.signed_store import SignedStore
from control_plane.api.responses import Problem
from control_plane.metrics import ControlPlaneMetrics
from control_plane.policy.source.policy_webhook import BURST, PolicyWebhook
from control_plane.policy.source.webhook_secret import WebhookSecret, load_webhook_secret
from penstock.planning.plan import RegionPlan
from tests.support.clocks import SetClock
from tests.support.control_planes import (
    OPERATOR,
    PLANET,
    UNKEPT,
    ControlPlaneServer,
    Operator,
    control_planes,
    rollout_rules,
)
from tests.support.git_repositories import PolicyRepository, bundle_files
from tests.support.identities import control_plane_keyring
from tests.support.wait import PATIENCE_S, found

SECRET = b"0123456789abcdef-webhook"
SPILLOVER = (PLANET / "spillover.yaml").read_bytes()


def signed(body: bytes, secret: bytes = SECRET) -> dict[str, str]:
    return {"x-hub-signature-256": "sha256=" + hmac.new(secret, body, sha256).hexdigest()}


async def deliveries(operator: Operator, server: ControlPlaneServer) -> dict[str, float]:
    text = (await operator.http.get(f"{server.url}/metrics", headers=OPERATOR)).text
    lines = [line for line in text.splitlines() if line.startswith("penstock_policy_webhooks_total{")]
    return {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in lines}


async def test_a_signed_delivery_applies_a_push_and_an_invalid_one_is_rejected(
    own_etcd: EtcdServer, tmp_path: Path
) -> None:
    repository = PolicyRepository(tmp_path / "policy.git")
    first = repository.commit(bundle_files(PLANET))
    (tmp_path / "secret").write_bytes(SECRET + b"\n")
    settings = {
        "POLICY_REPOSITORY": str(repository.path),
        "POLICY_POLL_S": "3600",
        "POLICY_WEBHOOK_SECRET_FILE": str(tmp_path / "secret"),
    }
    with control_planes("a", tmp_path, own_etcd.endpoint, policy_settings=settings) as (server,):
        async with Operator() as operator, httpx.AsyncClient(timeout=PATIENCE_S, limits=UNKEPT) as host:
            before = await operator.until(server, lambda status: status.plan is not None)
            assert before.policy.provenance is not None
            assert before.policy.provenance.commit == first
            hook = f"{server.url}/v1/policies/webhook"
            bad = [
                await host.post(hook, content=b"{}"),
                await host.post(hook, content=b"{} ", headers=signed(b"{}")),
                await host.post(hook, content=b"{}", headers=signed(b"{}", b"another secret")),
                await host.post(hook, content=b"{}", headers={"x-gitlab-token": "another secret"}),
                await host.post(hook, content=b"x" * (5 << 20), headers=signed(b"x" * (5 << 20))),
            ]
            assert [answer.status_code for answer in bad] == [401, 401, 401, 401, 413]
            assert (await deliveries(operator, server))["bad_signature"] == 4.0
            # A new leader polls once without a webhook, possibly after the first plan, and may read one of the two
            # commits below, but not both.
            second = repository.commit(bundle_files(PLANET, spillover=SPILLOVER.replace(b"0.8", b"0.7")))
            good = await host.post(
                hook, content=b'{"ref": "refs/heads/main"}', headers=signed(b'{"ref": "refs/heads/main"}')
            )
            assert good.status_code == 204
            after = await operator.until(
                server,
                lambda status: status.policy.provenance is not None and status.policy.provenance.commit == second,
            )
            assert after.policy.digest != before.policy.digest
            third = repository.commit(bundle_files(PLANET, spillover=SPILLOVER.replace(b"0.8", b"")))
            gitlab = await host.post(hook, content=b"{}", headers={"x-gitlab-token": SECRET.decode()})
            assert gitlab.status_code == 204
            refused = await operator.until(server, lambda status: bool(status.policy.refused))
            assert refused.policy.refused_provenance is not None
            assert refused.policy.refused_provenance.commit == third
            assert refused.policy.digest == after.policy.digest


async def test_every_plan_names_its_commit(own_etcd: EtcdServer, tmp_path: Path) -> None:
    repository = PolicyRepository(tmp_path / "policy.git")
    commit = repository.commit(bundle_files(PLANET), message=b"A reason for it")
    settings = {"POLICY_REPOSITORY": f"file://{repository.path}"}
    store = SignedStore(EtcdStore([own_etcd.endpoint]), control_plane_keyring())
    try:
        with control_planes("a", tmp_path, own_etcd.endpoint, policy_settings=settings) as (server,):
            async with Operator() as operator:
                shown = await operator.until(server, lambda status: status.plan is not None)
                assert shown.plan is not None
                assert shown.plan.provenance == shown.policy.provenance

            async def every_plan() -> list[RegionPlan] | None:
                plans = [decode(item.value, RegionPlan) for item in (await store.list(keys.PLANS)).items]
                return plans if len(plans) == 5 else None

            plans = await found(every_plan)
            assert {(plan.provenance.commit, plan.provenance.subject) for plan in plans if plan.provenance} == {
                (commit, "A reason for it")
            }
    finally:
        await store.close()


@pytest.mark.long
async def test_a_new_leader_polls_the_repository_before_a_rollout(own_etcd: EtcdServer, tmp_path: Path) -> None:
    repository = PolicyRepository(tmp_path / "policy.git")
    repository.commit(bundle_files(PLANET, rollout=rollout_rules()))
    settings = {"POLICY_REPOSITORY": str(repository.path), "POLICY_POLL_S": "3600"}
    with control_planes("ab", tmp_path, own_etcd.endpoint, policy_settings=settings) as servers:
        async with Operator() as operator:
            leader, epoch = await operator.leader_among(servers)
            await operator.until(leader, lambda status: status.plan is not None)
            second = repository.commit(
                bundle_files(PLANET, rollout=rollout_rules(), spillover=SPILLOVER.replace(b"0.8", b"0.7"))
            )
            (other,) = [server for server in servers if server is not leader]
            leader.kill()
            await operator.leader_among([other], besides=epoch)
            await operator.until(
                other,
                lambda status: (
                    status.plan is not None
                    and status.plan.provenance is not None
                    and status.plan.provenance.commit == second
                ),
            )


class TestRate:
    async def body(self) -> AsyncIterator[bytes]:
        yield b"{}"

    async def deliver(self, webhook: PolicyWebhook, address: str = "192.0.2.1", secret: bytes = SECRET) -> None:
        await webhook.receive(address, signed(b"{}", secret)["x-hub-signature-256"], None, self.body())

    async def test_wrong_signatures_are_rejected_unread_and_displace_no_caller(self) -> None:
        woken: list[None] = []
        webhook = PolicyWebhook(WebhookSecret(SECRET), lambda: woken.append(None), ControlPlaneMetrics(), SetClock())
        statuses = []
        for _ in range(100):
            with pytest.raises(Problem) as raised:
                await self.deliver(webhook, "198.51.100.7", b"a guess of the secret")
            statuses.append(raised.value.status_code)
        assert statuses == [401] * 20 + [429] * 80
        with pytest.raises(Problem) as raised:
            await self.deliver(webhook, "198.51.100.7")
        assert raised.value.status_code == 429
        await self.deliver(webhook)
        assert len(woken) == 1

    async def test_a_flood_is_refused_until_time_has_passed(self) -> None:
        woken: list[None] = []
        clock = SetClock()
        metrics = ControlPlaneMetrics()
        webhook = PolicyWebhook(WebhookSecret(SECRET), lambda: woken.append(None), metrics, clock)
        for _ in range(BURST):
            await self.deliver(webhook)
        with pytest.raises(Problem) as raised:
            await self.deliver(webhook)
        assert raised.value.status_code == 429
        assert len(woken) == BURST
        clock.now += 1.0
        await self.deliver(webhook)

    async def test_without_a_secret_deliveries_are_rejected(self) -> None:
        webhook = PolicyWebhook(None, lambda: None, ControlPlaneMetrics(), SetClock())
        with pytest.raises(Problem) as raised:
            await self.deliver(webhook)
        assert raised.value.status_code == 404


@pytest.mark.parametrize("content", [b"", b"short", b"two\nlines of a secret", b"x" * 70_000])
def test_an_invalid_secret_is_refused_without_its_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(BadSecret) as raised:
        load_webhook_secret(path)
    assert "openssl rand" in str(raised.value)
    assert not content or content.decode() not in str(raised.value)
