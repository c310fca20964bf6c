"""Policy on tenants and locations, by requests over real sockets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random

import msgspec
import pytest
from typer.testing import CliRunner

from control_plane.cli.demand_file import read_access_logs
from control_plane.cli.main import app
from penstock.policy.geography import Location
from penstock.policy.kinds.models import Cost, CostUnit, Model, ModelVersions, Version
from penstock.policy.kinds.regions import EntryMap
from penstock.policy.kinds.residency_rules import ResidencyRule
from penstock.policy.kinds.tenants import Quota
from penstock.what_if.demand_outcomes import DemandGroup
from regional_agent.telemetry.access_log import AccessLog, LogSigner
from tests.support.agents import Agent, running_agent
from tests.support.chats import BODY, answers, answers_after, ask
from tests.support.identities import agent_id, agent_keyring, write_identity
from tests.support.planet import MODEL
from tests.support.sockets import RawClient, ReceivedRequest, ScriptedEngine, engine, post
from tests.support.wait import until

REGIONS = ("eu-de", "eu-es")


async def test_the_access_log_has_country_and_entry_of_a_client(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    log = AccessLog(file, 1.0, Random(1))
    async with (
        engine(answers) as gpu,
        running_agent(tmp_path / "serving", [gpu.address], access_log=log) as serving,
        running_agent(tmp_path / "origin", [], region="eu-es", peers={"eu-de": serving.peer}, access_log=log) as origin,
    ):
        origin.location = Location("US", "CA", 34.0, -118.2)
        assert (await ask(origin))[0] == 200
    log.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(line["kind"] for line in lines) == ["failover", "forwarded"]
    assert {(line["origin"], line["country"], line["subdivision"]) for line in lines} == {("eu-es", "US", "CA")}
    assert read_access_logs([file]) == [DemandGroup("eu-es", "open", "US", MODEL, 1.0, "CA")], (
        "counted where it came in"
    )


async def test_access_logs_prove_where_a_governed_request_was_processed(tmp_path: Path) -> None:
    files = [tmp_path / "serving.log", tmp_path / "origin.log"]
    logs = [
        AccessLog(file, 1.0, Random(1), LogSigner(region, "agent", agent_keyring(region, "agent")))
        for file, region in zip(files, REGIONS, strict=True)
    ]
    usage = b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'
    released = asyncio.Event()

    async def counts_tokens(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        await released.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(usage), usage))

    async with (
        engine(counts_tokens) as gpu,
        running_agent(tmp_path / "serving", [gpu.address], access_log=logs[0], slots=1, queue=0) as serving,
        running_agent(
            tmp_path / "origin", [], region="eu-es", peers={"eu-de": serving.peer}, access_log=logs[1]
        ) as origin,
    ):
        eu_only = ResidencyRule("californians", client_subdivisions=frozenset({"US-CA"}), allow=frozenset(REGIONS))
        for agent in (serving, origin):
            agent.metrics.usage.use_names(["open"], {MODEL: 1.0})
            by_token = {MODEL: Model(MODEL, cost=Cost(CostUnit.TOKEN, 0.001, 0.01))}
            agent.config.policy = msgspec.structs.replace(agent.config.policy, residency=(eu_only,), models=by_token)
            agent.location = Location("US", "CA")
        first = asyncio.create_task(ask(serving))
        await until(lambda: serving.held() == 1)
        second = asyncio.create_task(ask(serving))
        await until(lambda: serving.queue.queues.waiting_here(MODEL) == 1)
        released.set()
        assert [(await asked).status for asked in (first, second)] == [200, 200]
        assert (await ask(origin)).status == 200
    for log in logs:
        log.close()
    at_home, waited, forwarded = (json.loads(line) for line in files[0].read_text().splitlines())
    (sent,) = (json.loads(line) for line in files[1].read_text().splitlines())
    for line in (at_home, waited, forwarded, sent):
        assert (line["policy_digest"], line["residency_class"]) == ("digest", "eu-de+eu-es")
    assert [region["what"] for region in sent["rejected"]] == ["us-east"]
    assert (at_home["input_tokens"], at_home["output_tokens"]) == (7, 3)
    assert "queue_ms" not in at_home
    assert 0 < waited["queue_ms"] <= waited["total_ms"]

    heads = [file.with_name(f"{file.name}.heads") for file in files]
    authority = write_identity(tmp_path / "identity", agent_id())
    report = ["residency", "report", *map(str, files)]
    result = CliRunner().invoke(app, [*report, *map(str, heads), "--trust", str(authority), "-o", "json"])
    found = json.loads(result.stdout)
    assert (result.exit_code, found["proven"], found["governed"], found["faults"]) == (0, True, 3, [])
    unverified = CliRunner().invoke(app, report)
    assert (unverified.exit_code, "consistent; signatures not verified" in unverified.stdout) == (0, True)
    unsigned = CliRunner().invoke(app, [*report, "--trust", str(authority)])
    assert (unsigned.exit_code, unsigned.stderr.count("no signature covers its lines, from the beginning")) == (1, 2)
    assert CliRunner().invoke(app, [*report, "--trust", str(tmp_path)]).exit_code == 2
    assert [(group["region"], group["requests"]) for group in found["processed"]] == [("eu-de", 3)]
    missing = CliRunner().invoke(app, ["residency", "report", str(files[1]), "--from", "2020-01-01"])
    assert missing.exit_code == 1
    assert f"{files[1]}:1: request" in missing.stderr
    assert "not proven" in missing.stdout
    assert CliRunner().invoke(app, ["residency", "report", str(files[1]), "--to", "soon"]).exit_code == 2
    assert CliRunner().invoke(app, ["residency", "report", str(files[1]), "--kept", "eu-de/a/1:x:y"]).exit_code == 2


async def test_lines_that_cannot_be_written_are_counted_in_metrics(tmp_path: Path) -> None:
    log = AccessLog(Path("/dev/full"), 1.0, Random(1))
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        for _ in range(3):
            assert (await ask(agent)).status == 200
        await until(lambda: b"penstock_agent_access_log_lines_dropped_total 3.0" in agent.metrics.render())
    log.close()


@pytest.mark.parametrize(
    ("location", "status", "code"),
    [
        (Location("US", "CA"), 421, "misdirected"),
        (Location("US", "NY"), 200, None),
        (Location("FR"), 200, None),
        (Location("US"), 451, "location_unknown"),
        (Location(), 451, "location_unknown"),
    ],
)
async def test_a_rule_by_subdivision(tmp_path: Path, location: Location, status: int, code: str | None) -> None:
    californians = ResidencyRule("californians", client_subdivisions=frozenset({"US-CA"}), allow=frozenset({"us-east"}))
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        config = agent.config
        config.policy = msgspec.structs.replace(config.policy, residency=(californians,))
        agent.location = location
        answer = await ask(agent)
    assert answer[0] == status
    if code is not None:
        assert json.loads(answer[2])["error"]["code"] == code


async def test_a_client_at_another_entry_is_redirected_by_its_entry_map(tmp_path: Path) -> None:
    away = ResidencyRule("away", client_countries=frozenset({"DE"}), deny=frozenset({"eu-de"}))
    by_sea = EntryMap("by-sea", frozenset({"DE"}), frozenset(), ("us-east",))
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        config = agent.config
        config.policy = msgspec.structs.replace(config.policy, residency=(away,), entry_maps=(by_sea,))
        agent.location = Location("DE")
        status, headers, _ = await ask(agent)
    assert (status, headers["x-penstock-regions"]) == (421, "us-east,eu-es")


def under_quota(agent: Agent, quota: Quota) -> None:
    config = agent.config
    tenant = msgspec.structs.replace(config.policy.tenants["open"], quota=quota)
    config.policy = msgspec.structs.replace(config.policy, tenants=config.policy.tenants | {"open": tenant})


async def test_a_tenant_over_its_rate_is_refused_with_retry_after(tmp_path: Path) -> None:
    file = tmp_path / "access.log"
    log = AccessLog(file, 1.0, Random(1))
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], access_log=log) as agent:
        under_quota(agent, Quota(requests_per_s=0.01, burst_requests=2, concurrent=None))
        assert [(await ask(agent))[0] for _ in range(2)] == [200, 200]
        status, headers, body = await ask(agent)
        assert (status, headers["x-penstock-refusal"]) == (429, "quota_exceeded")
        error = json.loads(body)["error"]
        assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
        assert "0.6 requests per minute in this region" in error["message"]
        assert 90 <= int(headers["retry-after"]) <= 150
        assert 30_000 <= int(headers["retry-after-ms"]) <= 60_000, "SDKs ignore more than 60 s"
        assert len(agent.offered) == 2, "what a quota refuses is no demand to plan for"
    log.close()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["status"], line["tenant"]) for line in lines] == [(200, "open"), (200, "open"), (429, "open")]
    (demand,) = read_access_logs([file])
    assert demand.model == MODEL, "the model of a request that a quota refuses is unknown"


async def test_every_end_of_a_request_releases_its_concurrency(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async with engine(answers_after(go_on)) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        under_quota(agent, Quota(requests_per_s=None, burst_requests=1, concurrent=2))
        stays, leaves = await RawClient.connect(agent.traffic), await RawClient.connect(agent.traffic)
        for client in (stays, leaves):
            client.send(post(BODY))
        await until(lambda: agent.budgets.running("open") == 2)
        assert (await ask(agent))[0] == 429
        leaves.close()
        await until(lambda: agent.budgets.running("open") == 1)
        go_on.set()
        assert (await stays.answer())[0] == 200
        assert (await ask(agent))[0] == 200
        await until(lambda: agent.budgets.running("open") == 0)
        stays.close()


async def test_each_of_two_agents_admits_half_of_a_quota(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        agent.agents_here = 2
        under_quota(agent, Quota(requests_per_s=0.01, burst_requests=4, concurrent=None))
        assert [(await ask(agent))[0] for _ in range(3)] == [200, 200, 429]


LIGHTER = "llama-3.2-1b"


def with_lighter(agent: Agent, percent: float | None = None, *, fallback: bool = False) -> None:
    """The fleet has a lighter model: as a fallback, or as a version with a share of the requested model."""
    config = agent.config
    models = {MODEL: Model(MODEL, fallback=LIGHTER if fallback else None), LIGHTER: Model(LIGHTER)}
    versions = {}
    if percent is not None:
        versions["llama"] = ModelVersions("llama", (Version(MODEL, 100.0 - percent), Version(LIGHTER, percent)))
    config.policy = msgspec.structs.replace(config.policy, models=models, versions=versions)


async def responds_with_its_model(e: ScriptedEngine, received: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    answer = json.dumps({"choices": [], "served": json.loads(received.body)}).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer
    )


@pytest.mark.parametrize(("percent", "model"), [(0.0, MODEL), (100.0, LIGHTER)])
async def test_blue_and_green_versions_are_switched(tmp_path: Path, percent: float, model: str) -> None:
    async with (
        engine(responds_with_its_model) as gpu,
        running_agent(tmp_path, [gpu.address], models=[MODEL, LIGHTER]) as agent,
    ):
        with_lighter(agent, percent)
        status, headers, body = await ask(agent, body=json.dumps({"model": "llama", "messages": ["hi"]}).encode())
        assert status == 200
        assert json.loads(body)["served"] == {"model": model, "messages": ["hi"]}
        assert headers["x-penstock-model"] == model
        assert agent.offered[0][0] == model, "demand is of the version that serves it"


async def test_a_session_keeps_its_version_and_others_are_drawn(tmp_path: Path) -> None:
    body = json.dumps({"model": "llama", "messages": []}).encode()
    async with (
        engine(responds_with_its_model) as gpu,
        running_agent(tmp_path, [gpu.address], models=[MODEL, LIGHTER]) as agent,
    ):
        with_lighter(agent, 50.0)
        drawn = {(await ask(agent, body=body))[1]["x-penstock-model"] for _ in range(40)}
        assert drawn == {MODEL, LIGHTER}
        for session in ("a", "b", "c", "d"):
            kept = {(await ask(agent, f"x-session-id: {session}", body=body))[1]["x-penstock-model"] for _ in range(8)}
            assert len(kept) == 1


async def test_a_forwarded_request_names_the_version(tmp_path: Path) -> None:
    async with (
        engine(responds_with_its_model) as gpu,
        running_agent(tmp_path / "serving", [gpu.address], models=[MODEL, LIGHTER]) as serving,
        running_agent(tmp_path / "origin", [], region="eu-es", peers={"eu-de": serving.peer}) as origin,
    ):
        with_lighter(origin, 100.0)
        with_lighter(serving, 0.0)
        status, headers, body = await ask(origin, body=json.dumps({"model": "llama", "messages": []}).encode())
        assert (status, json.loads(body)["served"]["model"]) == (200, LIGHTER)
        assert (headers["x-penstock-model"], headers["x-penstock-region"]) == (LIGHTER, "eu-de")


async def test_a_body_that_cannot_be_rewritten_gets_the_named_version_or_an_error_with_names(tmp_path: Path) -> None:
    upload = ("content-type: audio/wav", "x-model: llama")
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], models=[MODEL, LIGHTER]) as agent:
        with_lighter(agent, 100.0)
        status, _, body = await ask(agent, *upload, body=b"RIFF", path="/v1/audio/transcriptions")
        assert (status, json.loads(body)["error"]["code"]) == (400, "bad_request")
        assert LIGHTER in json.loads(body)["error"]["message"]
        status, _, body = await ask(agent, body=b'{"model": "llama", "model": "llama"}')
        assert (status, "repeated" in json.loads(body)["error"]["message"]) == (400, True)


async def test_a_lighter_model_serves_when_no_endpoint_has_the_model(tmp_path: Path) -> None:
    async with (
        engine(responds_with_its_model) as gpu,
        running_agent(tmp_path, [gpu.address], models=[LIGHTER]) as agent,
    ):
        with_lighter(agent)
        assert (await ask(agent))[0] == 503
        with_lighter(agent, fallback=True)
        status, headers, body = await ask(agent)
        assert (status, json.loads(body)["served"]["model"]) == (200, LIGHTER)
        assert headers["x-penstock-model"] == LIGHTER
        assert agent.offered[-1][0] == LIGHTER
        status, headers, _ = await ask(agent, body=json.dumps({"model": LIGHTER, "messages": []}).encode())
        assert "x-penstock-model" not in headers
    assert agent.held() == 0


async def test_a_missing_lighter_model_does_not_change_the_refusal(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address], models=["another"]) as agent:
        with_lighter(agent, fallback=True)
        status, _, body = await ask(agent)
        assert (status, json.loads(body)["error"]["code"]) == (503, "none_ready")


async def test_the_list_of_models_has_the_names_of_versions(tmp_path: Path) -> None:
    async with engine(answers) as gpu, running_agent(tmp_path, [gpu.address]) as agent:
        with_lighter(agent, 10.0)
        client = await RawClient.connect(agent.traffic)
        client.send(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
        _, _, body = await client.answer()
        client.close()
    assert [model["id"] for model in json.loads(body)["data"]] == [MODEL, LIGHTER, "llama"]


async def test_a_queued_request_is_evaluated_under_a_new_policy(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async with (
        engine(answers_after(go_on)) as gpu,
        running_agent(tmp_path, [gpu.address], slots=1, queue=0, trusted=True) as agent,
    ):
        first, second = await RawClient.connect(agent.traffic), await RawClient.connect(agent.traffic)
        agent.location = Location("FR")
        first.send(post(BODY, "x-forwarded-for: 192.0.2.1"))
        await until(lambda: agent.held() == 1)
        agent.location = Location("DE")
        second.send(post(BODY, "x-forwarded-for: 192.0.2.2"))
        await until(lambda: agent.waiting() == 1)
        config = agent.config
        # The new policy applies to all open requests; the rule matches only the queued one.
        not_here = ResidencyRule("not-here", client_countries=frozenset({"DE"}), deny=frozenset({"eu-de"}))
        config.policy = msgspec.structs.replace(config.policy, residency=(not_here,))
        go_on.set()
        assert (await first.answer())[0] == 200
        status, _, body = await second.answer()
        assert (status, json.loads(body)["error"]["code"]) == (421, "misdirected")
        first.close()
        second.close()
