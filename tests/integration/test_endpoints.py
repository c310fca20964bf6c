import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.fleet.endpoint_report import EndpointCondition
from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.engines.engine_facts import ServedModel
from penstock.health.engines.engine_kinds import EngineKind
from penstock.health.engines.engine_signals import Signal
from penstock.health.outlier_ejection import AttemptOutcome
from penstock.policy.kinds.models import Model
from penstock.policy.policy import Policy
from penstock.pools.pool_accounting import DEFAULT_SERVICE_S, Load
from penstock.routing.endpoint_selection import Candidates, choose_endpoint
from regional_agent.endpoints import reported_models
from regional_agent.endpoints.endpoint import Endpoint
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_file import BadEndpointFile
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.endpoints.probing.endpoint_signals import MAX_PAGE_BYTES
from regional_agent.telemetry.by_endpoint.endpoint_reports import endpoint_report
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.clocks import AdvancingClock
from tests.support.descriptors import no_free_descriptors
from tests.support.small_http import Headers, SmallHttp
from tests.support.wait import until


class Engine(SmallHttp):
    """An engine that serves health, models and load only."""

    def __init__(self) -> None:
        self.status = 200
        self.models: list[str] | None = None
        """What /v1/models lists; None for an engine without that page."""
        self.about: dict[str, object] = {}
        """Further fields of each entry of /v1/models."""
        self.pages: dict[bytes, bytes | None] = {}
        """Content of further pages, by path."""
        self.metrics = b""
        """Content of the metrics page; empty for an engine without one."""
        self.metrics_path = b"/metrics"
        self.asked_for: set[bytes] = set()
        super().__init__(self._page)

    async def _page(self, method: bytes, target: bytes, headers: Headers, body: bytes) -> tuple[int, bytes]:
        assert method == b"GET"
        self.asked_for.add(target)
        if target in (b"/health", b"/v2/health/ready", b"/ping"):
            return self.status, b""
        if target == b"/v1/models" and self.models is not None:
            return 200, msgspec.json.encode(
                {"object": "list", "data": [{"id": name, **self.about} for name in self.models]}
            )
        if target in self.pages:
            page = self.pages[target]
            if page is None:
                await asyncio.Event().wait()
            return 200, page or b""
        if target.startswith(b"/v2/models/") and target.endswith(b"/ready"):
            return (200 if target.split(b"/")[3].decode() in (self.models or ()) else 400), b""
        if target == self.metrics_path and self.metrics:
            return 200, self.metrics
        return 404, b""


@pytest.fixture
async def engines() -> AsyncIterator[list[Engine]]:
    made = [Engine(), Engine()]
    for engine in made:
        await engine.start()
    yield made
    for engine in made:
        await engine.stop()


@pytest.fixture
async def connections() -> AsyncIterator[UpstreamPool]:
    pool = UpstreamPool()
    yield pool
    pool.close()


def entry(name: str, url: str, slots: int = 4, queue: int = 2, models: str = "m") -> str:
    return f"- {{name: {name}, url: '{url}', models: [{models}], slots: {slots}, queue: {queue}}}\n"


def both_lines(engines: list[Engine]) -> str:
    return "".join(entry(f"gpu-{n}", engine.url) for n, engine in enumerate(engines))


@pytest.fixture
async def endpoints(engines: list[Engine], connections: UpstreamPool, tmp_path: Path) -> AsyncIterator[EndpointSet]:
    file = tmp_path / "endpoints.yaml"
    file.write_text(both_lines(engines))
    made = EndpointSet(EndpointSettings(file), connections, Random(1))
    yield made
    await made.stop()


def named(endpoints: EndpointSet, name: str) -> Endpoint:
    return next(endpoint for endpoint in endpoints.every() if endpoint.name == name)


async def test_becomes_ready_by_probes_over_kept_connections(endpoints: EndpointSet, engines: list[Engine]) -> None:
    pool = endpoints.pools["m"]
    assert (pool.ready, pool.slots, [view.ready for view in pool.views]) == (0, 0, [False, False])
    endpoints.start()
    await until(lambda: pool.ready == 2)
    assert pool.slots == 8
    assert [view is endpoint.view for view, endpoint in zip(pool.views, pool.endpoints, strict=True)] == [True, True]
    await until(lambda: min(engine.requests for engine in engines) >= 8)
    assert max(engine.connections for engine in engines) <= 3
    assert endpoints.pools["other"].ready == 0


async def test_an_endpoint_fails_and_recovers_with_its_health_check(
    endpoints: EndpointSet, engines: list[Engine]
) -> None:
    endpoints.start()
    pool = endpoints.pools["m"]
    await until(lambda: pool.ready == 2)
    engines[0].status = 503
    await until(lambda: not pool.views[0].ready)
    assert (pool.ready, pool.slots) == (1, 4)
    assert endpoint_report(pool.endpoints[0]).reason == "it answers the health probe with 503"
    await engines[1].stop()
    await until(lambda: pool.ready == 0)
    await until(lambda: "cannot connect to" in endpoint_report(pool.endpoints[1]).reason)
    engines[0].status = 200
    await engines[1].start()
    await until(lambda: pool.ready == 2)


async def test_an_engine_is_ready_while_the_pages_about_itself_hang(
    engines: list[Engine], connections: UpstreamPool, tmp_path: Path
) -> None:
    for engine in engines:
        engine.models, engine.metrics_path = ["m"], b""
        engine.pages |= {b"/version": None, b"/metrics": None}
    file = tmp_path / "endpoints.yaml"
    file.write_text(both_lines(engines).replace("models:", "engine: vllm, models:"))
    endpoints = EndpointSet(EndpointSettings(file), connections, Random(1))
    endpoints.start()
    try:
        await until(lambda: endpoints.pools["m"].ready == 2)
    finally:
        await endpoints.stop()


async def test_endpoints_that_serve_another_revision_are_marked_and_refused_if_policy_says_so(
    engines: list[Engine], connections: UpstreamPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reported_models, "MODELS_INTERVAL_S", 0.05)
    for engine, root in zip(engines, ("/models/v2", "/models/v1"), strict=True):
        engine.models, engine.about = ["m"], {"root": root, "max_model_len": 4096}
        engine.pages[b"/version"] = b'{"version": "0.9.1"}'
    engines[1].about["max_model_len"] = -1
    file = tmp_path / "endpoints.yaml"
    file.write_text(both_lines(engines).replace("models:", "engine: vllm, models:"))
    endpoints = EndpointSet(EndpointSettings(file), connections, Random(1))

    def use(**fields: Any) -> None:
        endpoints.use_policy(Policy(regions={}, models={"m": Model("m", **fields)}, tenants={}, residency=()))

    endpoints.start()
    try:
        pool = endpoints.pools["m"]
        await until(lambda: pool.ready == 2)
        first, second = pool.endpoints
        report = endpoint_report(second)
        assert report.engine_version == "0.9.1"
        assert (report.served, endpoint_report(first).served) == (
            (ServedModel("m", "/models/v1"),),
            (ServedModel("m", "/models/v2", 4096),),
        )
        assert "m: serves /models/v1, and its siblings /models/v2; max_model_len of m is not a number" in report.skew
        use(expected_revision="/models/v2")
        assert endpoint_report(first).skew == ""
        assert endpoint_report(second).skew.startswith("m: serves /models/v1, and policy expects /models/v2")
        assert pool.ready == 2, "marked, and not refused"
        use(expected_revision="/models/v2", refuse_skewed=True)
        assert (pool.ready, pool.slots, endpoints.refused("m")) == (1, 4, [second])
        refused = endpoint_report(second)
        assert refused.condition is EndpointCondition.UNLOADED
        assert refused.reason == "m: serves /models/v1, and policy expects /models/v2"
        engines[1].about = {"root": "/models/v2", "max_model_len": 4096}
        await until(lambda: pool.ready == 2)
        assert endpoint_report(second).skew == ""
        clock = endpoints.versions._clock = AdvancingClock()
        engines[1].about = {"root": "/models/v1"}
        await until(lambda: pool.ready == 1)
        engines[1].about = {"root": "/models/v2"}
        await until(lambda: "within the last 60 s" in endpoint_report(second).reason)
        assert pool.ready == 1
        clock.skipped_s = 61.0
        await until(lambda: pool.ready == 2)
    finally:
        await endpoints.stop()


async def test_a_failed_connect_removes_the_endpoint_until_a_good_probe(
    endpoints: EndpointSet, engines: list[Engine]
) -> None:
    endpoints.start()
    pool = endpoints.pools["m"]
    await until(lambda: pool.ready == 2)
    pool.endpoints[0].connection_failed()
    assert (pool.ready, pool.views[0].ready) == (1, False)
    await until(lambda: pool.ready == 2)


async def test_a_silent_engine_under_load_is_not_failed_by_one_late_probe(
    endpoints: EndpointSet, engines: list[Engine]
) -> None:
    endpoints.start()
    pool = endpoints.pools["m"]
    await until(lambda: pool.ready == 2)
    engines[0].silent = True
    engines[0].asked.clear()
    await engines[0].asked.wait()
    await until(lambda: pool.endpoints[0].health.failure_points > 0)
    assert pool.views[0].ready


async def test_pool_numbers_follow_reservations_and_readiness(endpoints: EndpointSet, engines: list[Engine]) -> None:
    endpoints.start()
    pool = endpoints.pools["m"]
    await until(lambda: pool.ready == 2)
    first, second = pool.endpoints
    first.take()
    first.take()
    second.take()
    assert (pool.in_flight, first.view.in_flight, second.view.in_flight) == (3, 2, 1)
    endpoints.set_remote_loads({"gpu-0": Load(3, 0, 0), "gpu-9": Load(5, 0, 0)})
    assert (pool.in_flight, first.view.in_flight) == (6, 5)
    for _ in range(2):
        first.probed(ProbeOutcome.UNREADY)
    assert pool.in_flight == 1
    first.give_back()
    await until(lambda: pool.ready == 2)
    assert (pool.in_flight, first.view.in_flight) == (5, 4)
    endpoints.set_remote_loads({})
    first.give_back()
    second.give_back()
    assert (pool.in_flight, first.view.in_flight, second.view.in_flight) == (0, 0, 0)


async def test_service_time_starts_at_the_prior_of_the_policy(endpoints: EndpointSet) -> None:
    endpoints.start()
    pool = endpoints.pools["m"]
    await until(lambda: pool.ready == 2)
    assert pool.service_s == DEFAULT_SERVICE_S
    endpoints.use_policy(Policy(regions={}, models={"m": Model("m", 2.0)}, tenants={}, residency=()))
    assert pool.service_s == 2.0
    for _ in range(200):
        pool.endpoints[0].completed(0.5)
    await until(lambda: abs(pool.service_s - 0.5) < 0.01)


async def test_the_file_is_read_again_when_it_changes(
    endpoints: EndpointSet, engines: list[Engine], tmp_path: Path
) -> None:
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    kept, gone = endpoints.pools["m"].endpoints
    kept.take()
    gone.take()
    file = tmp_path / "endpoints.yaml"
    file.write_text(entry("gpu-0", engines[0].url, slots=9, models="m, n") + entry("gpu-2", engines[1].url))
    await until(lambda: endpoints.pools["n"].ready == 1 and endpoints.pools["m"].ready == 2)
    assert endpoints.pools["m"].endpoints[0] is kept
    assert (kept.view.slots, kept.view.limit, kept.view.in_flight) == (9, 11, 1)
    assert gone.view.draining
    assert gone in endpoints.every()
    assert choose_endpoint(Candidates([gone.view]), Random(1)).index is None
    gone.give_back()
    await until(lambda: gone not in endpoints.every())
    assert [endpoint.name for endpoint in endpoints.every()] == ["gpu-0", "gpu-2"]


async def test_an_endpoint_that_returns_while_draining_keeps_its_requests(
    endpoints: EndpointSet, engines: list[Engine], tmp_path: Path
) -> None:
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    returning = named(endpoints, "gpu-0")
    for _ in range(6):
        returning.take()
    file = tmp_path / "endpoints.yaml"
    both = file.read_text()
    file.write_text(entry("gpu-1", engines[1].url))
    await until(lambda: returning.view.draining)
    engines[0].status = 503
    file.write_text(both)
    await until(lambda: [endpoint.name for endpoint in endpoints.pools["m"].endpoints] == ["gpu-0", "gpu-1"])
    assert named(endpoints, "gpu-0") is returning
    assert (returning.view.in_flight, returning.view.takes_more, returning.view.ready) == (6, False, False)
    engines[0].status = 200
    await until(lambda: returning.view.ready)
    assert endpoints.pools["m"].in_flight == 6
    for _ in range(6):
        returning.give_back()
    assert (returning.view.takes_more, endpoints.pools["m"].in_flight) == (True, 0)


async def test_a_new_kind_of_engine_at_an_address_is_detected(
    endpoints: EndpointSet, engines: list[Engine], tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    engines[0].metrics = b"vllm:num_requests_waiting 3\n"
    plain = both_lines(engines).replace("name: gpu-0", "name: gpu-0, engine: http")
    file.write_text(plain)
    await endpoints.sources.reload_file()
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    endpoint = named(endpoints, "gpu-0")
    file.write_text(plain.replace("engine: http", "engine: vllm"))
    await until(lambda: Signal.QUEUED in endpoint.readings)
    file.write_text(plain)
    await until(lambda: endpoint.kind is EngineKind.HTTP)
    assert endpoint.health.ready


async def test_a_file_that_was_unreadable_is_read_again(endpoints: EndpointSet, tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(file.read_text() + entry("gpu-2", "http://127.0.0.1:1"))
    await asyncio.to_thread(int)  # starts the resolver's thread before descriptors run out
    with no_free_descriptors():
        await endpoints.sources.reload_file()
    assert "Too many open files" in (endpoints.sources.problem or "")
    await endpoints.sources.reload_file()
    assert endpoints.sources.problem is None
    assert len(endpoints.pools["m"].endpoints) == 3


async def test_a_bad_or_missing_file_changes_nothing_and_is_reported(
    endpoints: EndpointSet, engines: list[Engine], tmp_path: Path
) -> None:
    endpoints.start()
    pool = endpoints.pools["m"]
    await until(lambda: pool.ready == 2)
    file = tmp_path / "endpoints.yaml"
    good = file.read_text()
    file.write_text(entry("gpu-0", engines[0].url, slots=0))
    await until(lambda: "slots" in (endpoints.sources.problem or ""))
    assert endpoints.pools["m"] is pool
    assert pool.slots == 8
    aside = file.rename(tmp_path / "aside.yaml")
    await until(lambda: "cannot read" in (endpoints.sources.problem or ""))
    assert pool.slots == 8
    aside.write_text(good)
    aside.rename(file)
    await until(lambda: endpoints.sources.problem is None)
    assert endpoints.pools["m"].endpoints == pool.endpoints


async def test_an_endpoint_with_another_address_is_a_new_endpoint(
    endpoints: EndpointSet, engines: list[Engine], tmp_path: Path
) -> None:
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    before = named(endpoints, "gpu-0")
    (tmp_path / "endpoints.yaml").write_text(entry("gpu-0", engines[1].url))
    await until(lambda: endpoints.pools["m"].endpoints != [] and len(endpoints.pools["m"].endpoints) == 1)
    assert named(endpoints, "gpu-0") is not before
    await until(lambda: endpoints.pools["m"].ready == 1)


async def test_an_endpoint_is_ready_for_its_loaded_models_only(
    connections: UpstreamPool, engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regional_agent.endpoints.reported_models.MODELS_INTERVAL_S", 0.1)
    file = tmp_path / "endpoints.yaml"
    file.write_text("".join(entry(f"gpu-{n}", engine.url, models="m, lora") for n, engine in enumerate(engines)))
    engines[0].models, engines[1].models = ["base", "m"], []
    endpoints = EndpointSet(EndpointSettings(file), connections, Random(1))
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 1 and named(endpoints, "gpu-1").health.ready)
    assert [endpoint.name for endpoint in endpoints.pools["m"].endpoints] == ["gpu-0"]
    assert (endpoints.pools["m"].missing, endpoints.pools["lora"].missing, endpoints.pools["lora"].slots) == (1, 2, 0)
    assert not named(endpoints, "gpu-1").view.ready
    # Ollama lists a name with its tag, and serves the tag `latest` for a name without one.
    engines[1].models = ["m:latest", "lora"]
    await until(lambda: endpoints.pools["m"].ready == 2 and endpoints.pools["lora"].ready == 1)
    engines[1].models = ["lora", "m:8b"]
    await until(lambda: endpoints.pools["m"].ready == 1)
    assert endpoints.pools["lora"].ready == 1
    await endpoints.stop()


async def test_an_engine_without_the_model_is_polled_at_once_and_one_without_models_repeatedly(
    endpoints: EndpointSet, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regional_agent.endpoints.reported_models.MODELS_INTERVAL_S", 3600.0)
    for engine in engines:
        engine.models = ["m"]
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    unloaded = named(endpoints, "gpu-0")
    engines[0].models = []
    await until(lambda: endpoints.answered(unloaded, 404, ()) is not None and endpoints.pools["m"].ready == 1)
    assert [endpoint.name for endpoint in endpoints.pools["m"].endpoints] == ["gpu-1"]
    engines[0].models = ["m"]
    await until(lambda: endpoints.pools["m"].ready == 2)


async def test_each_kind_of_engine_is_polled_by_its_own_api(
    connections: UpstreamPool, engines: list[Engine], tmp_path: Path
) -> None:
    file = tmp_path / "endpoints.yaml"
    triton = entry("triton", engines[0].url, models="a/b, m").replace("}", ", engine: triton}")
    plain = entry("plain", engines[1].url).replace("}", ", engine: http, health: /ping}")
    file.write_text(triton + plain)
    engines[0].models = ["m"]
    endpoints = EndpointSet(EndpointSettings(file), connections, Random(1))
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    assert engines[0].asked_for == {b"/v2/health/ready", b"/v2/models/a%2Fb/ready", b"/v2/models/m/ready"}
    assert engines[1].asked_for == {b"/ping"}
    assert endpoints.pools["a/b"].endpoints == []
    await endpoints.stop()


async def test_an_engine_is_identified_by_its_metrics_and_then_polled_by_its_own_api(
    endpoints: EndpointSet, engines: list[Engine]
) -> None:
    engines[0].models, engines[0].metrics = ["its/own-name"], b"tgi_queue_size 2\ntgi_batch_current_size 7\n"
    engines[1].metrics = b"vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.5\n"
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    tgi, vllm = endpoints.pools["m"].endpoints
    await until(lambda: vllm.view.pressure == 0.5 and tgi.view.pressure == 0.5)
    assert (tgi.kind, vllm.kind) == (EngineKind.TGI, EngineKind.VLLM)
    assert {signal: reading.value for signal, reading in tgi.readings.items()} == {
        Signal.QUEUED: 2.0,
        Signal.RUNNING: 7.0,
    }


async def test_metrics_are_read_at_the_path_of_each_kind(
    endpoints: EndpointSet, engines: list[Engine], tmp_path: Path
) -> None:
    for engine in engines:
        engine.metrics = b"trtllm_num_requests_waiting 2\n"
    engines[0].metrics_path = b"/prometheus/metrics"
    (tmp_path / "endpoints.yaml").write_text(both_lines(engines).replace("name: gpu-0", "name: gpu-0, engine: trtllm"))
    await endpoints.sources.reload_file()
    endpoints.start()
    configured, discovered = named(endpoints, "gpu-0"), named(endpoints, "gpu-1")
    await until(lambda: Signal.QUEUED in configured.readings and discovered.kind is EngineKind.TRTLLM)
    received_at = discovered.readings[Signal.QUEUED].received_at
    await until(
        lambda: discovered.readings[Signal.QUEUED].received_at > received_at or bool(discovered.signals_problem)
    )
    assert (configured.signals_problem, discovered.signals_problem) == ("", "")


@pytest.mark.parametrize("page", [b"x" * (MAX_PAGE_BYTES + 1), b"\x00\xff" * 9, b"vllm:num_requests_waiting -7\n"])
async def test_an_invalid_metrics_page_is_reported_and_ejects_no_endpoint(
    endpoints: EndpointSet, engines: list[Engine], page: bytes
) -> None:
    for engine in engines:
        engine.metrics = page
    endpoints.start()
    await until(lambda: all(endpoint.signals_problem for endpoint in endpoints.every()))
    await until(lambda: endpoints.pools["m"].ready == 2)
    assert [view.pressure for view in endpoints.pools["m"].views] == [0.0, 0.0]


async def test_load_headers_of_responses_are_read_and_bad_ones_reported(endpoints: EndpointSet) -> None:
    reporting, malformed = endpoints.every()
    assert (
        endpoints.answered(reporting, 200, [(b"endpoint-load-metrics", b"TEXT application_utilization=0.95")]) is None
    )
    endpoints.answered(malformed, 200, [(b"endpoint-load-metrics", b"CSV 1")])
    for endpoint in (reporting, malformed):
        endpoint.tick()
    assert (round(reporting.view.pressure, 6), malformed.view.pressure) == (0.5, 0.0)
    assert "TEXT" in malformed.signals_problem


async def test_an_endpoint_that_rejects_requests_is_chosen_last_for_a_while(endpoints: EndpointSet) -> None:
    """The endpoint is idle and would be every request's first choice, so that all would be rejected there first."""
    pool = endpoints.pools["m"]
    busy, sibling = pool.endpoints
    for endpoint in pool.endpoints:
        endpoint.probed(ProbeOutcome.GOOD)
    sibling.take()
    assert choose_endpoint(pool.candidates, Random(1)).index == 0
    assert endpoints.answered(busy, 400, []) is endpoints.answered(busy, 429, []) is AttemptOutcome.INCONCLUSIVE
    assert choose_endpoint(pool.candidates, Random(1)).index == 1
    assert choose_endpoint(pool.candidates, Random(1), tried={"gpu-1"}).index == 0, "but it is not closed"
    for _ in range(5):
        sibling.take()
    assert choose_endpoint(pool.candidates, Random(1)).index == 0
    sibling.give_back()
    assert endpoints.answered(sibling, 503, [(b"retry-after", b"1")]) is AttemptOutcome.INCONCLUSIVE
    assert sibling.view.pressure == busy.view.pressure == 1.0
    assert endpoints.answered(busy, 500, []) is AttemptOutcome.SERVER_ERROR


async def test_endpoints_follow_the_addresses_of_a_name(
    connections: UpstreamPool, engines: list[Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regional_agent.endpoints.discovery.dns_discovery.RESOLVE_S", 0.05)
    answers: list[list[str] | OSError] = [OSError("no such host")]

    async def resolve(host: str) -> list[str]:
        assert host == "engines.test"
        if isinstance(answers[0], OSError):
            raise answers[0]
        return answers[0]

    (tmp_path / "dns.yaml").write_text(
        f"- {{name: gpus, dns: 'engines.test:{engines[0].port}', models: [m], slots: 4}}\n"
        + entry("gpu-1", engines[1].url)
    )
    endpoints = EndpointSet(EndpointSettings(tmp_path / "dns.yaml", resolve=resolve), connections, Random(1))
    endpoints.start()
    await until(lambda: endpoints.sources.discovery.dns.status()["engines.test"]["problem"] == "no such host")
    await until(lambda: endpoints.pools["m"].ready == 1)
    answers[0] = ["127.0.0.1", "127.0.0.2", "127.0.0.1"]
    await until(lambda: endpoints.pools["m"].ready == 2)
    assert [endpoint.name for endpoint in endpoints.pools["m"].endpoints] == [
        "gpus-127.0.0.1",
        "gpus-127.0.0.2",
        "gpu-1",
    ]
    staying = named(endpoints, "gpus-127.0.0.1")
    answers[0] = []
    await until(
        lambda: endpoints.sources.discovery.dns.status()["engines.test"]["problem"] == "the host has no address"
    )
    assert len(endpoints.pools["m"].endpoints) == 3
    answers[0] = ["127.0.0.1"]
    await until(lambda: len(endpoints.pools["m"].endpoints) == 2)
    assert named(endpoints, "gpus-127.0.0.1") is staying
    assert endpoints.sources.discovery.dns.status()["engines.test"]["problem"] is None
    await endpoints.stop()


async def test_an_agent_that_starts_while_dns_fails_uses_the_stored_addresses(
    connections: UpstreamPool, engines: list[Engine], tmp_path: Path
) -> None:
    async def resolve(host: str) -> list[str]:
        if (tmp_path / "discovered").exists():
            raise OSError("no such host")
        return ["127.0.0.1"]

    file = tmp_path / "dns.yaml"
    file.write_text(f"- {{name: gpus, dns: 'engines.test:{engines[0].port}', models: [m], slots: 4}}\n")
    endpoints = EndpointSet(EndpointSettings(file, resolve=resolve, state_dir=tmp_path), connections, Random(1))
    endpoints.start()
    await until((tmp_path / "discovered").exists)
    await endpoints.stop()
    restarted = EndpointSet(EndpointSettings(file, resolve=resolve, state_dir=tmp_path), connections, Random(1))
    assert [endpoint.name for endpoint in restarted.every()] == ["gpus-127.0.0.1"]
    restarted.start()
    await until(lambda: restarted.sources.discovery.dns.status()["engines.test"]["problem"] == "no such host")
    await until(lambda: restarted.pools["m"].ready == 1)
    await restarted.stop()


async def test_the_systems_resolver_does_not_block_serving(
    connections: UpstreamPool, engines: list[Engine], tmp_path: Path
) -> None:
    (tmp_path / "dns.yaml").write_text(
        f"- {{name: gpus, dns: 'localhost:{engines[0].port}', models: [m], slots: 4}}\n"
        "- {name: none, dns: 'nobody.invalid:80', models: [m], slots: 4}\n"
    )
    endpoints = EndpointSet(EndpointSettings(tmp_path / "dns.yaml"), connections, Random(1))
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready >= 1)
    await until(lambda: bool(endpoints.sources.discovery.dns.status()["nobody.invalid"]["problem"]))
    assert endpoints.sources.discovery.dns.status()["nobody.invalid"]["addresses"] == ()
    await endpoints.stop()


async def test_a_registered_endpoint_serves_drains_and_yields_to_the_file(
    endpoints: EndpointSet, engines: list[Engine], tmp_path: Path
) -> None:
    async with Engine() as third:
        spec = EndpointSpec("new", Address("127.0.0.1", third.port), ("m",), 4)
        assert endpoints.sources.register(spec) is None
        endpoints.start()
        await until(lambda: endpoints.pools["m"].ready == 3)
        new = named(endpoints, "new")
        assert endpoints.sources.register(spec) is None
        assert endpoints.sources.register(msgspec.structs.replace(spec, slots=9)) is None
        assert (named(endpoints, "new"), new.view.slots) == (new, 9)
        assert "gpu-0" in (endpoints.sources.register(msgspec.structs.replace(spec, name="gpu-0")) or "")
        assert "gpu-0" in (
            endpoints.sources.register(msgspec.structs.replace(spec, address=engines_address(engines[0]))) or ""
        )
        new.take()
        endpoints.sources.unregister("new")
        assert new.view.draining
        assert new in endpoints.every()
        new.give_back()
        await until(lambda: new not in endpoints.every())
        assert endpoints.sources.register(spec) is None
        (tmp_path / "endpoints.yaml").write_text(entry("new", engines[0].url))
        await until(lambda: [endpoint.name for endpoint in endpoints.pools["m"].endpoints] == ["new"])
        assert named(endpoints, "new").address == engines_address(engines[0])


def engines_address(engine: Engine) -> Address:
    return Address("127.0.0.1", engine.port)


async def test_an_agent_does_not_start_without_an_endpoints_file(connections: UpstreamPool, tmp_path: Path) -> None:
    with pytest.raises(BadEndpointFile, match="cannot read"):
        EndpointSet(EndpointSettings(tmp_path / "none.yaml"), connections, Random(1))


async def test_stops_cleanly(endpoints: EndpointSet, engines: list[Engine]) -> None:
    endpoints.start()
    await until(lambda: endpoints.pools["m"].ready == 2)
    before = asyncio.all_tasks()
    await endpoints.stop()
    assert not [task for task in before & asyncio.all_tasks() if "probe" in task.get_name() or "end" in task.get_name()]


async def test_an_accelerator_of_unknown_speed_is_logged_once(tmp_path: Path, connections: UpstreamPool) -> None:
    file = tmp_path / "endpoints.yaml"
    fields = "models: [m], slots: 1, accelerator"
    file.write_text(
        "".join(f"- {{name: g{n}, url: 'http://127.0.0.1:{n}', {fields}: x{n // 2}}}\n" for n in range(1, 6))
    )
    with capture_logs() as logs:
        made = EndpointSet(EndpointSettings(file), connections, Random(1))
        await made.stop()
    found = [log["event"].split()[1] for log in logs if log["event"].startswith("accelerator")]
    assert found == ["'x0'", "'x1'", "'x2'"]
