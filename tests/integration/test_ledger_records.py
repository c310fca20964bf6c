"""An agent's ledger has one record of each request with its use and price, and records of other GPU time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from penstock.ledger.capacity_meter import GpuTime
from penstock.ledger.ledger_record import LedgerRecord, RecordKind
from penstock.ledger.spool_format import read_spool, records_of
from penstock.policy.geography import Location
from penstock.policy.kinds.billing import ModelPrice, Prices, UsageStore
from penstock.policy.kinds.models import Cost, CostUnit
from penstock.policy.kinds.regions import SpotPool
from penstock.policy.service_objective import ServiceObjective
from regional_agent.config.start_epoch import AgentInstance
from regional_agent.ledger.capacity_recorder import CapacityRecorder
from regional_agent.ledger.request_ledger import RequestLedger
from regional_agent.ledger.spool_file import boot_id
from tests.support.agents import running_agent
from tests.support.chats import SSE_HEAD, answers_after, ask, chunk, code
from tests.support.planet import MODEL, plan, policy
from tests.support.sockets import ReceivedRequest, ScriptedEngine, engine
from tests.support.wait import until

WORD = b'data: {"choices":[{"index":0,"delta":{"content":"word"},"finish_reason":null}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":1000,"completion_tokens":20,'
    b'"prompt_tokens_details":{"cached_tokens":400}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def ledger_in(folder: Path, region: str = "eu-de", *, max_bytes: int = 1 << 30, refuses: bool = False) -> RequestLedger:
    """A ledger that is on, under the test fleet's policy with a price list; requests of batches have half price."""
    fleet = policy()
    models = {name: replace(model, cost=Cost(CostUnit.TOKEN)) for name, model in fleet.models.items()}
    prices = Prices("p", 0.0, "EUR", (ModelPrice("llama-*", 3.0, 1.0, 10.0, 0.01),), batch_percent=50.0)
    store = UsageStore("all", "file:///nowhere", covers=frozenset(fleet.regions))
    agent = AgentInstance(region, f"{region}-1", 1)
    ledger = RequestLedger(agent, folder / "ledger", max_bytes, refuses_when_full=refuses)
    ledger.use(replace(fleet, models=models, prices=(prices,), usage_stores=(store,)))
    return ledger


def records_in(folder: Path) -> list[LedgerRecord]:
    """The records of all sealed files; an open file would be the sign of a request without an end."""
    paths = sorted((folder / "ledger").iterdir())
    assert {path.suffix for path in paths} == {".sealed"}
    return [each for path in paths for each in records_of(read_spool(path.read_bytes(), boot_id()), is_last=True)]


async def streams(e: ScriptedEngine, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(SSE_HEAD + chunk(WORD) + chunk(USAGE) + chunk(DONE) + b"0\r\n\r\n")


async def refuses(e: ScriptedEngine, request: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")


async def test_a_request_has_one_record_with_its_tokens_and_its_price(tmp_path: Path) -> None:
    async with (
        engine(refuses) as busy,
        engine(streams) as gpu,
        running_agent(tmp_path, [busy.address, gpu.address], ledger=ledger_in(tmp_path)) as agent,
    ):
        for number, limit_s in enumerate((60.0, 60.0, 1e-6)):
            judged = replace(policy().models[MODEL], service_objective=ServiceObjective(limit_s, 0.99))
            agent.tally.use_objectives({MODEL: judged})
            answer = await ask(agent, f"X-Request-Id: r{number}")
            assert answer.status == 200
        assert len(gpu.requests) == 3
    found = records_in(tmp_path)
    ends = [record for record in found if record.kind == RecordKind.REQUEST]
    assert [record.request_id for record in ends] == ["r0", "r1", "r2"]
    for end in ends:
        assert (end.tenant, end.model, end.origin, end.region, end.agent) == (
            "open",
            MODEL,
            "eu-de",
            "eu-de",
            "eu-de-1",
        )
        assert (end.outcome, end.status, end.is_estimated, end.is_overhead) == ("ok", 200, False, False)
        assert (end.input_tokens, end.cached_tokens, end.output_tokens) == (1000, 400, 20)
        assert round(end.price, 9) == round(600 * 3e-6 + 400 * 1e-6 + 20 * 10e-6 + 0.01, 9)
        assert 0.0 < end.gpu_s < 60.0
        assert end.gpu_cost > 0.0
        assert 0 < end.first_byte_ms <= end.total_ms < 60_000
    judgements = [(end.objective, end.is_within) for end in ends]
    assert judgements == [("first_byte 60 0.99", True)] * 2 + [("first_byte 1e-06 0.99", False)]
    lost = [record for record in found if record.kind == RecordKind.LOST_ATTEMPT]
    assert len(lost) == len(busy.requests)
    assert len(found) == len(ends) + len(lost)


async def test_a_forwarded_request_is_counted_at_its_origin_and_its_gpu_time_where_it_ran(tmp_path: Path) -> None:
    away = plan("eu-de", "eu-de+eu-es", eu_es=1.0)
    here, there = tmp_path / "origin", tmp_path / "server"
    async with (
        engine(streams) as far,
        running_agent(there, [far.address], region="eu-es", anonymous=None, ledger=ledger_in(there, "eu-es")) as server,
        running_agent(
            here, [], anonymous="personal", plan=away, peers={"eu-es": server.peer}, ledger=ledger_in(here)
        ) as origin,
    ):
        origin.location = Location("DE")
        answer = await ask(origin, "X-Request-Id: far-1")
        assert (answer.status, answer.headers["x-penstock-region"]) == (200, "eu-es")
    (request,) = records_in(here)
    (served,) = records_in(there)
    assert (request.kind, request.origin, request.region, request.gpu_s) == (RecordKind.REQUEST, "eu-de", "eu-es", 0.0)
    assert request.output_tokens == 20
    assert request.egress_bytes > len(answer.body)
    assert (served.kind, served.origin, served.region, served.request_id) == (
        RecordKind.SERVED,
        "eu-de",
        "eu-es",
        "far-1",
    )
    assert (served.output_tokens, served.price) == (0, 0.0)
    assert served.gpu_s > 0.0


async def test_a_policy_that_turns_the_ledger_off_seals_the_file_despite_open_requests(tmp_path: Path) -> None:
    answers = asyncio.Event()

    ledger = ledger_in(tmp_path)
    async with (
        engine(answers_after(answers, streams)) as gpu,
        running_agent(tmp_path, [gpu.address], ledger=ledger) as agent,
    ):
        asked = asyncio.create_task(ask(agent, "X-Request-Id: running"))
        await until(lambda: bool(gpu.requests))
        ledger.use(policy())
        paths = list((tmp_path / "ledger").iterdir())
        answers.set()
        assert (await asked).status == 200
    assert [path.suffix for path in paths] == [".sealed"]
    assert not ledger.spool.is_open


async def test_gpu_time_of_a_model_that_a_policy_removed_is_by_the_policy_of_the_request(tmp_path: Path) -> None:
    answers = asyncio.Event()

    ledger = ledger_in(tmp_path)
    async with (
        engine(answers_after(answers, streams)) as gpu,
        running_agent(tmp_path, [gpu.address], ledger=ledger) as agent,
    ):
        asked = asyncio.create_task(ask(agent, "X-Request-Id: running"))
        await until(lambda: bool(gpu.requests))
        store = UsageStore("all", "file:///nowhere", covers=frozenset(policy().regions))
        ledger.use(replace(policy(), models={}, usage_stores=(store,)))
        answers.set()
        assert (await asked).status == 200
    (end,) = (record for record in records_in(tmp_path) if record.kind == RecordKind.REQUEST)
    assert end.gpu_s > 0.0


async def test_a_request_that_no_region_served_has_a_record_without_a_price(tmp_path: Path) -> None:
    async with running_agent(tmp_path, [], ledger=ledger_in(tmp_path)) as agent:
        assert (await ask(agent)).status == 503
    (record,) = records_in(tmp_path)
    assert (record.outcome, record.status, record.region, record.price) == ("refused", 503, "", 0.0)
    assert record.is_overhead


async def test_a_full_spool_refuses_requests_where_settings_say_so(tmp_path: Path) -> None:
    async with engine(streams) as gpu:
        for refuses, status in ((False, 200), (True, 503)):
            directory = tmp_path / str(status)
            ledger = ledger_in(directory, max_bytes=1, refuses=refuses)
            async with running_agent(directory, [gpu.address], ledger=ledger) as agent:
                assert (await ask(agent)).status == 200
                file = ledger.spool._file
                assert file is not None
                file.end = file.size_bytes - 2
                answer = await ask(agent)
                assert answer.status == status
                assert (status == 200) or code(answer.body) == "ledger_full"
                # The start and the end of the request that was served.
                assert ledger.spool.lost_records == (0 if refuses else 2)


async def test_the_gpu_time_of_a_regions_endpoints_is_recorded_by_class(tmp_path: Path) -> None:
    ledger, now = ledger_in(tmp_path), [0.0]
    start_s = 1_795_780_800.0
    async with (
        engine(streams) as gpu,
        engine(streams) as other,
        running_agent(
            tmp_path, [gpu.address, other.address], ledger=ledger, burst=[{"url": "http://127.0.0.1:1", "slots": 8}]
        ) as agent,
    ):
        _, lost, _ = agent.endpoints.every()
        lost.view.ready = False
        recorder = CapacityRecorder(
            ledger,
            agent.endpoints.every,
            lambda: agent.config.policy,
            clock=lambda: now[0],
            wall_clock=lambda: start_s + now[0],
        )
        for now[0] in (0.0, 2.0, 4.0):
            recorder.sample()
        recorder.close()
    (found,) = records_in(tmp_path)
    assert (found.kind, found.region, found.gpu_s, found.tenant) == (RecordKind.CAPACITY, "eu-de", 0.0, "")
    assert found.model == MODEL
    assert (found.ready_gpu_s, found.unready_gpu_s) == (4.0, 4.0)
    assert found.capacity_cost > 0.0


def test_gpu_time_of_spot_capacity_has_its_own_price(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    before = policy()
    here = replace(before.regions["eu-de"], cost_per_gpu_hour=2.0, spot=(SpotPool((MODEL,), 0.5),))
    store = UsageStore("all", "file:///nowhere", covers=frozenset(before.regions))
    ledger.use(replace(before, regions={**before.regions, "eu-de": here}, usage_stores=(store,)))
    ledger.capacity([GpuTime(1, "h100", model, 3600.0, 1800.0) for model in (MODEL, "another")])
    ledger.close()
    assert [(each.model, each.capacity_cost) for each in records_in(tmp_path)] == [(MODEL, 0.75), ("another", 3.0)]
