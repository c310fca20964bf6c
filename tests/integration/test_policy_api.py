"""Policies and rollouts over the API, on the store in memory: views, verdicts, commands, refusals and audit."""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.store import keys
from control_plane.api.routes.rollouts import rollouts_routes
from control_plane.auth.admin_token import AdminToken
from control_plane.auth.authentication import Access
from control_plane.daemon import ControlPlane
from lab.memory_store import MemoryStore
from penstock.policy import policy_diff
from penstock.policy.policy import Policy
from penstock.policy.policy_diff import Change
from penstock.rollout.policy_rollout import Phase
from tests.support.api_app import client_of, new_control_plane, served
from tests.support.bundles import large_bundle
from tests.support.control_planes import OPERATOR, PLANET, TOKEN, rollout_rules
from tests.support.rollout_orders import order
from tests.support.wait import found, until

SPILLOVER = (PLANET / "spillover.yaml").read_text()
REASON = {"reason": "a test"}


class World:
    """A control plane that leads, its folder of policy, and its API."""

    def __init__(self, control_plane: ControlPlane, http: httpx.AsyncClient, folder: Path) -> None:
        self.control_plane = control_plane
        self.http = http
        self.folder = folder

    def write(self, target: str) -> None:
        (self.folder / "spillover.yaml").write_text(SPILLOVER.replace("0.8", target))

    async def until(self, number: int, phase: Phase) -> None:
        def there() -> bool:
            seen = self.control_plane.reporter.status().rollout
            return seen is not None and (seen.number, seen.phase) == (number, phase)

        await until(there)

    async def get(self, path: str, **params: str) -> Any:
        response = await self.http.get(path, params=params)
        assert response.status_code == 200, response.text
        return response.json()

    async def tag(self) -> dict[str, str]:
        return {"if-match": (await self.http.get("/v1/rollouts/current")).headers["etag"]}

    async def order(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        if headers is None:
            return await order(self.http, path, REASON["reason"])
        return await self.http.post(path, json=REASON, headers=headers)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    folder = Path(shutil.copytree(PLANET, tmp_path / "bundle"))
    (folder / "rollout.yaml").write_bytes(rollout_rules(shadow_s=3600, canary_regions="[eu-es]", watch_s=3600))
    store = MemoryStore()
    control_plane = new_control_plane(store, policies=folder)
    await control_plane.start()
    async with client_of(served(control_plane, Access(AdminToken(TOKEN))), **OPERATOR) as http:
        world = World(control_plane, http, folder)
        await world.until(1, Phase.DONE)
        yield world
    await control_plane.stop()
    await store.close()


async def in_shadow(world: World) -> tuple[str, str]:
    """Start a rollout; returns the digests of the stable policy and the candidate."""
    world.write("0.7")
    await world.until(2, Phase.SHADOW)
    rollout = (await world.get("/v1/rollouts/current"))["rollout"]
    return rollout["stable"], rollout["candidate"]


async def test_revisions_and_policies_are_shown_without_keys(world: World) -> None:
    stable, candidate = await in_shadow(world)
    revisions = (await world.get("/v1/policies"))["items"]
    assert [(revision["number"], revision["digest"], revision["errors"]) for revision in revisions] == [
        (2, candidate, []),
        (1, stable, []),
    ]
    shown = await world.get(f"/v1/policies/{candidate}")
    assert (shown["in_force"], shown["policy"]["spillover"]["target_utilisation"]) == (False, 0.7)
    assert all(len(key) == 12 for tenant in shown["policy"]["tenants"].values() for key in tenant["key_digests"])
    assert (await world.get(f"/v1/policies/{stable}"))["in_force"]
    response = await world.http.get(f"/v1/policies/{stable}")
    known = await world.http.get(f"/v1/policies/{stable}", headers={"if-none-match": response.headers["etag"]})
    assert known.status_code == 304
    assert (await world.http.get(f"/v1/policies/{'0' * 64}")).status_code == 404
    assert (await world.http.get("/v1/policies/latest")).status_code == 422


async def test_a_refused_revision_is_kept_with_its_errors(world: World) -> None:
    world.write("")
    await until(lambda: bool(world.control_plane.policies.refused))

    async def recorded() -> Any:
        revisions = (await world.get("/v1/policies"))["items"]
        return revisions if len(revisions) == 2 else None

    revisions = await found(recorded)
    assert (revisions[0]["digest"], len(revisions[0]["errors"])) == ("", 1)
    assert revisions[0]["errors"][0].startswith("spillover.yaml:4: target_utilisation: ")


async def test_policies_are_not_compared_on_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await in_shadow(world)
    threads: list[threading.Thread] = []

    def diff(before: Policy, after: Policy) -> tuple[Change, ...]:
        threads.append(threading.current_thread())
        return policy_diff.diff(before, after)

    monkeypatch.setattr(rollouts_routes, "diff", diff)
    assert (await world.get("/v1/rollouts/current"))["changes"]
    assert threads
    assert threading.current_thread() not in threads


def archive(files: dict[str, bytes], mode: str = "w") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def planet(**replaced: str) -> dict[str, str]:
    files = {path.name: path.read_text() for path in PLANET.glob("*.yaml")}
    return files | {f"{name}.yaml": text for name, text in replaced.items()}


async def written(world: World) -> list[str]:
    """Keys in the store, except for the leader's plans and their events."""
    items = (await world.control_plane._store.list("")).items
    return [item.key for item in items if not item.key.startswith((keys.PLANS, keys.JOURNAL))]


async def test_a_bundle_is_validated_and_not_stored(world: World) -> None:
    await found(lambda: world.control_plane._store.get(keys.revision(1)))
    before = await written(world)
    good = await world.http.post("/v1/policies/validate", json=planet(spillover=SPILLOVER.replace("0.8", "0.5")))
    assert good.status_code == 200
    assert good.json()["good"]
    assert ("Spillover", "target_utilisation") in {
        (change["kind"], change["field"]) for change in good.json()["changes"]
    }
    bad = (await world.http.post("/v1/policies/validate", json=planet(spillover="", models="a: [}"))).json()
    assert not bad["good"]
    assert {error["file"] for error in bad["errors"]} == {"models.yaml", "spillover.yaml", "(bundle)"}
    assert await written(world) == before


async def test_a_bundle_that_lost_its_rules_is_shown_and_not_rolled_out(world: World) -> None:
    (world.folder / "residency.yaml").unlink()

    async def reported() -> list[str] | None:
        return (await world.get("/v1/status"))["policy"]["refused"] or None

    async def recorded() -> Any:
        newest = (await world.get("/v1/policies"))["items"][0]
        return newest if newest["errors"] else None

    errors = await found(reported)
    assert "would remove the ResidencyRule" in errors[0]
    assert "AcceptedRemoval" in errors[0]
    assert (await world.get("/readyz"))["policy_refused"] == errors
    newest = await found(recorded)
    assert newest["errors"] == errors
    lost = {name: text for name, text in planet().items() if name != "residency.yaml"}
    rules = (world.folder / "rollout.yaml").read_text()
    judged = (await world.http.post("/v1/policies/validate", json={**lost, "rollout.yaml": rules})).json()
    assert (judged["good"], judged["digest"]) == (True, newest["digest"])
    assert judged["removals"][0].startswith("ResidencyRule ")

    path = f"/v1/policies/{newest['digest']}/apply"
    tag = await world.tag()
    refused = await world.http.post(path, json=REASON, headers=tag)
    assert (refused.status_code, "confirm with --allow-removal" in refused.text) == (409, True)
    applied = await world.http.post(path, json={**REASON, "allow_removal": True}, headers=tag)
    assert applied.status_code == 200, applied.text
    entry = (await world.get("/v1/audit"))["items"][0]
    assert entry["action"] == "policy.apply"
    assert entry["after"]["removes"][0].startswith("ResidencyRule ")


async def test_a_tar_of_the_folder_is_validated_alike(world: World) -> None:
    headers = {"content-type": "application/x-tar"}
    files = {f"./bundle/{name}": text.encode() for name, text in planet().items()}

    async def judged(content: bytes) -> Any:
        response = await world.http.post("/v1/policies/validate", content=content, headers=headers)
        assert response.status_code == 200, response.text
        return response.json()

    good = await judged(archive({**files, "./bundle/README.md": b"\xff"}))
    assert good["good"], good
    assert good["digest"] == (await world.http.post("/v1/policies/validate", json=planet())).json()["digest"]
    for content, reported in [
        (archive({**files, "bundle/huge.yaml": b"x" * (2 << 20)}), "huge.yaml: larger than"),
        (archive({**files, "other/more.yaml": b""}), "is spread over several folders"),
        (archive({**files, "bundle/run.sh": b""}), "run.sh: is not a .yaml file"),
        (archive(files, "w:gz"), "is not a tar archive"),
        (b"not an archive", "is not a tar archive"),
        (archive({}), "has no policy files"),
    ]:
        errors = [f"{error['file']}: {error['problem']}" for error in (await judged(content))["errors"]]
        assert any(reported in error for error in errors), (reported, errors)


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"[]", "application/json", 422),
        (b'{"a.yaml": 1}', "application/json", 422),
        (b"[" * 100_000, "application/json", 422),
        (b"\xff", "application/json", 422),
        (b"x" * (5 << 20), "application/x-tar", 413),
    ],
)
async def test_other_content_is_refused(world: World, content: bytes, kind: str, status: int) -> None:
    response = await world.http.post("/v1/policies/validate", content=content, headers={"content-type": kind})
    assert response.status_code == status, response.text


async def test_a_caller_has_one_evaluation_at_a_time(world: World) -> None:
    large = large_bundle(100_000)
    answers = await asyncio.gather(*(world.http.post("/v1/policies/validate", json=large) for _ in range(4)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert [answer.status_code for answer in answers if answer not in refused] == [200]
    assert {answer.headers["retry-after"] for answer in refused} == {"5"}


async def test_a_rollout_is_halted_promoted_and_rolled_back_with_reasons_in_the_audit_log(world: World) -> None:
    stable, candidate = await in_shadow(world)
    assert (await world.order("/v1/rollouts/current/halt")).json()["phase"] == "shadow_held"
    assert (await world.order("/v1/rollouts/current/halt")).status_code == 409
    never = await world.order(f"/v1/policies/{candidate}/rollback")
    assert (never.status_code, "has completed: roll it out with `apply`" in never.text) == (409, True)
    promoted = (await world.order("/v1/rollouts/current/promote")).json()
    assert (promoted["phase"], promoted["by"], promoted["why"]) == ("watch", "admin-token", "a test")
    await until(lambda: {plan.policy_digest for plan in world.control_plane.view.plans.values()} == {candidate})
    assert (await world.order("/v1/rollouts/current/rollback")).json()["phase"] == "rolled_back"
    await until(lambda: {plan.policy_digest for plan in world.control_plane.view.plans.values()} == {stable})
    rollouts = (await world.get("/v1/rollouts"))["items"]
    assert [(rollout["number"], rollout["phase"]) for rollout in rollouts] == [(2, "rolled_back"), (1, "done")]
    audited = (await world.get("/v1/audit"))["items"]
    assert [entry["action"] for entry in audited] == ["rollout.roll_back", "rollout.promote", "rollout.halt"]
    assert audited[0]["before"]["phase"] == "watch"


async def test_actions_require_the_revision_that_was_read(world: World) -> None:
    await in_shadow(world)
    stale = await world.tag()
    assert (await world.order("/v1/rollouts/current/halt", {})).status_code == 428
    assert (await world.order("/v1/rollouts/current/halt")).status_code == 200
    assert (await world.order("/v1/rollouts/current/promote", stale)).status_code == 412
    assert (
        await world.http.post("/v1/rollouts/current/promote", json={}, headers={"if-match": "*"})
    ).status_code == 422


async def test_a_rollback_holds_until_the_source_has_a_new_revision(world: World) -> None:
    stable, candidate = await in_shadow(world)
    await world.order("/v1/rollouts/current/promote")
    await until(lambda: {plan.policy_digest for plan in world.control_plane.view.plans.values()} == {candidate})
    back = await world.order(f"/v1/policies/{stable}/rollback")
    assert (back.json()["phase"], back.json()["stable"]) == ("done", stable)
    await until(lambda: {plan.policy_digest for plan in world.control_plane.view.plans.values()} == {stable})
    assert (await world.order(f"/v1/policies/{stable}/rollback")).status_code == 409
    generation = world.control_plane.view.plans["eu-de"].generation
    await until(lambda: world.control_plane.view.plans["eu-de"].generation > generation)
    assert (await world.get("/v1/rollouts/current"))["rollout"]["number"] == 3
    again = (await world.order(f"/v1/policies/{candidate}/apply")).json()
    assert (again["phase"], again["candidate"], again["number"]) == ("shadow", candidate, 4)
    assert (await world.order(f"/v1/policies/{candidate}/apply")).status_code == 409
    assert (await world.order(f"/v1/policies/{'0' * 64}/apply")).status_code == 404
    world.write("0.6")
    await world.until(5, Phase.SHADOW)
