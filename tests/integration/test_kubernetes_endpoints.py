"""Endpoints from Kubernetes, by the list and watch protocol over HTTPS."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.health.engines.engine_kinds import EngineKind
from regional_agent.endpoints.discovery import kubernetes_api, kubernetes_reflector
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.identities import authority
from tests.support.kubernetes_server import KubernetesServer
from tests.support.wait import until

SLICES = "/apis/discovery.k8s.io/v1/namespaces/ml/endpointslices"
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/ml/inferencepools"
PODS = "/api/v1/namespaces/ml/pods"


def endpoint_slice(
    name: str,
    *endpoints: dict[str, Any],
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/service-name": "llama", **(labels or {})},
            **({"annotations": annotations} if annotations else {}),
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}, {"name": "metrics", "port": 9000}],
        "endpoints": list(endpoints),
    }


def server(address: str, zone: str = "a", **conditions: bool) -> dict[str, Any]:
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False, **conditions},
        "zone": zone,
        "targetRef": {"kind": "Pod", "name": f"pod-{address}"},
    }


def pod(name: str, address: str, *, ready: bool = True, app: str = "llama", **metadata: Any) -> dict[str, Any]:
    metadata.setdefault("labels", {})["app"] = app
    status = {"podIP": address, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return {"metadata": {"name": name, **metadata}, "spec": {}, "status": {"phase": "Running", **status}}


def pool(app: str, *ports: int) -> dict[str, Any]:
    spec = {"selector": {"matchLabels": {"app": app}}, "targetPorts": [{"number": port} for port in ports]}
    return {"metadata": {"name": "llama"}, "spec": {**spec, "endpointPickerRef": {"name": "picker"}}}


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[KubernetesServer]:
    monkeypatch.setattr(kubernetes_reflector, "BACKOFF_BASE_S", 0.02)
    monkeypatch.setattr(kubernetes_reflector, "BACKOFF_CAP_S", 0.02)
    async with KubernetesServer(tmp_path) as server:
        yield server


@asynccontextmanager
async def watching(api: KubernetesServer, tmp_path: Path, what: str, rest: str = "") -> AsyncIterator[EndpointSet]:
    file = tmp_path / "endpoints.yaml"
    file.write_text(
        f"- name: llama\n  kubernetes: {{namespace: ml, {what}, api_server: '{api.url}',"
        f" token_file: {api.token_file}, ca_file: {api.ca_file}}}\n" + (rest or "  models: [llama-3-8b]\n  slots: 16\n")
    )
    connections = UpstreamPool()
    endpoints = EndpointSet(EndpointSettings(file, state_dir=tmp_path), connections, Random(1))
    endpoints.start()
    try:
        yield endpoints
    finally:
        await endpoints.stop()
        connections.close()


def addresses(endpoints: EndpointSet) -> list[str]:
    return [str(spec.address) for spec in endpoints.sources.specs]


def status(endpoints: EndpointSet) -> dict[str, Any]:
    (only,) = endpoints.sources.discovery.status()["kubernetes"].values()
    return dict(only)


async def test_slices_are_listed_page_by_page_and_watched(
    api: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "PAGE_OBJECTS", 2)
    for number in range(5):
        await api.put(SLICES, endpoint_slice(f"llama-{number}", server(f"10.0.0.{number}", "b")))
    await api.put(SLICES, {**endpoint_slice("other", server("10.9.9.9")), "metadata": {"name": "other"}})
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(endpoints.sources.specs) == 5)
        assert (api.pages, endpoints.sources.specs[0].name) == (3, "llama-10.0.0.0-8000")
        assert {spec.zone for spec in endpoints.sources.specs} == {"b"}
        await until(lambda: len(api.watches) == 1)
        await api.put(SLICES, endpoint_slice("llama-0", server("10.0.0.0"), server("10.0.1.0")))
        await api.delete(SLICES, "llama-4")
        await until(lambda: len(endpoints.sources.specs) == 5 and "10.0.1.0:8000" in addresses(endpoints))
        assert (len(api.lists), len(api.watches), status(endpoints)["problems"]) == (1, 1, [])


async def test_an_endpoint_that_is_not_ready_or_terminates_drains(api: KubernetesServer, tmp_path: Path) -> None:
    everything = [server(f"10.0.0.{number}") for number in range(3)]
    await api.put(SLICES, endpoint_slice("llama", *everything))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(endpoints.sources.specs) == 3)
        busy = next(endpoint for endpoint in endpoints.every() if endpoint.address.host == "10.0.0.1")
        busy.take()
        # As with publishNotReadyAddresses, where a terminating endpoint stays ready.
        leaving = server("10.0.0.1", terminating=True)
        await api.put(SLICES, endpoint_slice("llama", everything[0], leaving, server("10.0.0.2", ready=False)))
        await until(lambda: addresses(endpoints) == ["10.0.0.0:8000"])
        assert busy.view.draining
        assert busy in endpoints.every()
        await api.put(SLICES, endpoint_slice("llama", *everything))
        await until(lambda: len(endpoints.sources.specs) == 3)
        assert not busy.view.draining
        busy.give_back()


async def test_labels_and_annotations_give_the_attributes(api: KubernetesServer, tmp_path: Path) -> None:
    await api.put(
        SLICES,
        endpoint_slice(
            "good",
            server("10.0.0.1"),
            labels={"penstock/slots": "8", "penstock/engine": "vllm", "team/model": "not-this"},
            annotations={"team/model": "llama-3-8b, mistral/7b"},
        ),
    )
    await api.put(SLICES, endpoint_slice("bad", server("10.0.0.2"), labels={"penstock/slots": "many"}))
    rest = "  slots: 16\n  accelerator: h100\n"
    async with watching(api, tmp_path, "service: llama, port: http, models_label: team/model", rest) as endpoints:
        await until(lambda: len(endpoints.sources.specs) == 1)
        (spec,) = endpoints.sources.specs
        assert (spec.models, spec.slots, spec.engine) == (("llama-3-8b", "mistral/7b"), 8, EngineKind.VLLM)
        assert (spec.zone, spec.accelerator) == ("a", "h100")
        assert status(endpoints)["problems"] == [
            "EndpointSlice bad: slots: not a whole number from 1 to 100000; write the number of requests"
        ]
        await api.put(
            SLICES, endpoint_slice("bad", server("10.0.0.2"), labels={"team/model": "m", "penstock/slots": "x"})
        )
        await until(lambda: len(endpoints.sources.specs) == 2)
        assert endpoints.sources.specs[1].slots == 16


async def test_resumes_a_watch_without_a_list_and_from_a_bookmark(api: KubernetesServer, tmp_path: Path) -> None:
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(api.watches) == 1)
        await api.put(SLICES, endpoint_slice("more", server("10.0.0.2")))
        await until(lambda: len(endpoints.sources.specs) == 2)
        bookmarked = await api.bookmark()
        await api.end_watches()
        await until(lambda: len(api.watches) == 2)
        assert (api.watches[1], len(api.lists)) == (bookmarked, 1)
        await api.stop()
        await api.put(SLICES, endpoint_slice("more", server("10.0.0.3")))
        await until(lambda: status(endpoints)["problems"] != [])
        await api.start()
        await until(lambda: addresses(endpoints) == ["10.0.0.1:8000", "10.0.0.3:8000"])
        assert len(api.lists) == 1
        assert status(endpoints)["problems"] == []


@pytest.mark.parametrize("as_event", [False, True])
async def test_lists_again_after_the_history_was_compacted(
    api: KubernetesServer, tmp_path: Path, as_event: bool
) -> None:
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(api.watches) == 1)
        if as_event:
            api.error_event = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        else:
            api.compact()
        await api.end_watches()
        await until(lambda: len(api.lists) == 2)
        await api.put(SLICES, endpoint_slice("llama", server("10.0.0.2")))
        await until(lambda: addresses(endpoints) == ["10.0.0.2:8000"])


async def test_keeps_the_endpoints_while_the_api_server_fails_or_has_lost_everything(
    api: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(endpoints.sources.specs) == 1)
        api.status = 500
        await api.end_watches()
        await until(lambda: status(endpoints)["problems"] == ["the API server answers 500: unavailable"])
        api.wipe()
        api.status = 200
        await until(lambda: "empty" in str(status(endpoints)["problems"]))
        lists = len(api.lists)
        await until(lambda: len(api.lists) > lists + 2)
        assert addresses(endpoints) == ["10.0.0.1:8000"]
        monkeypatch.setattr(kubernetes_reflector, "CONFIRM_EMPTY_S", 0.0)
        await until(lambda: addresses(endpoints) == [])


async def test_the_last_deletion_of_a_watch_is_applied_at_once(api: KubernetesServer, tmp_path: Path) -> None:
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(api.watches) == 1 and len(endpoints.sources.specs) == 1)
        await api.delete(SLICES, "llama")
        await until(lambda: addresses(endpoints) == [])
        assert len(api.lists) == 1


async def test_an_agent_that_starts_without_the_api_server_uses_the_last_endpoints(
    api: KubernetesServer, tmp_path: Path
) -> None:
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(endpoints.sources.specs) == 1)
        await until(lambda: (tmp_path / "discovered").exists())
    await api.stop()
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        assert addresses(endpoints) == ["10.0.0.1:8000"]
        assert not endpoints.sources.discovery.has_answered()
        await until(endpoints.sources.discovery.has_answered)
        assert addresses(endpoints) == ["10.0.0.1:8000"]
        api.wipe()
        await api.start()
        await until(lambda: "empty" in str(status(endpoints)["problems"]))
        assert addresses(endpoints) == ["10.0.0.1:8000"]


async def test_the_token_is_read_again_and_sent_to_verified_servers_only(api: KubernetesServer, tmp_path: Path) -> None:
    api.token = "token-2"
    good = api.ca_file.read_bytes()
    api.ca_file.write_bytes(authority(1).pem)
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: "CERTIFICATE_VERIFY_FAILED" in str(status(endpoints)["problems"]))
        assert api.tokens == set()
        api.ca_file.write_bytes(good)
        await until(lambda: f"put a valid token into {api.token_file}" in str(status(endpoints)["problems"]))
        api.token_file.write_text("token-2")
        await until(lambda: len(endpoints.sources.specs) == 1 and len(api.watches) == 1)
        assert api.tokens == {"token-1", "token-2"}
        api.token_file.unlink()
        await api.end_watches()
        await until(lambda: "cannot read the token" in str(status(endpoints)["problems"]))
        assert addresses(endpoints) == ["10.0.0.1:8000"]
        assert "token-2" not in str(status(endpoints))


async def test_an_inference_pool_is_followed_by_its_pods(api: KubernetesServer, tmp_path: Path) -> None:
    zone = {"topology.kubernetes.io/zone": "z1"}
    await api.put(PODS, pod("one", "10.0.0.1", labels=dict(zone), annotations={"penstock/slots": "4"}))
    await api.put(PODS, pod("two", "10.0.0.2", ready=False))
    await api.put(PODS, pod("three", "10.0.0.3", app="other"))
    async with watching(api, tmp_path, "inference_pool: llama") as endpoints:
        await until(lambda: "there is no InferencePool llama in ml" in status(endpoints)["problems"])
        await api.put(POOLS, pool("llama", 8000, 8001))
        await until(lambda: addresses(endpoints) == ["10.0.0.1:8000", "10.0.0.1:8001"])
        assert [(spec.zone, spec.slots) for spec in endpoints.sources.specs] == [("z1", 4), ("z1", 4)]
        await api.put(PODS, pod("two", "10.0.0.2"))
        await until(lambda: len(endpoints.sources.specs) == 4)
        await api.put(PODS, pod("one", "10.0.0.1", deletionTimestamp="2026-01-01T00:00:00Z"))
        await until(lambda: addresses(endpoints) == ["10.0.0.2:8000", "10.0.0.2:8001"])
        await api.put(POOLS, pool("other", 9000))
        await until(lambda: addresses(endpoints) == ["10.0.0.3:9000"])
        assert status(endpoints)["problems"] == []
        await api.delete(POOLS, "llama")
        await until(lambda: addresses(endpoints) == [])


async def test_too_many_objects_change_nothing(
    api: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_reflector, "MAX_OBJECTS", 2)
    for number in range(2):
        await api.put(SLICES, endpoint_slice(f"llama-{number}", server(f"10.0.0.{number}")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(api.watches) == 1 and len(endpoints.sources.specs) == 2)
        await api.put(SLICES, endpoint_slice("llama-2", server("10.0.0.2")))
        await until(lambda: status(endpoints)["problems"] == ["more than 2 objects; select fewer"])
        assert addresses(endpoints) == ["10.0.0.0:8000", "10.0.0.1:8000"]


async def test_an_event_that_is_too_long_breaks_the_watch(
    api: KubernetesServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "MAX_EVENT_BYTES", 4096)
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(api.watches) == 1 and len(endpoints.sources.specs) == 1)
        await api.put(SLICES, endpoint_slice("huge", annotations={"note": "x" * 300_000}))
        await until(lambda: "a line of more than 4096 bytes" in str(status(endpoints)["problems"]))
        assert addresses(endpoints) == ["10.0.0.1:8000"]


async def test_an_invalid_object_keeps_its_last_valid_version(api: KubernetesServer, tmp_path: Path) -> None:
    await api.put(SLICES, endpoint_slice("llama", server("10.0.0.1")))
    async with watching(api, tmp_path, "service: llama, port: http") as endpoints:
        await until(lambda: len(api.watches) == 1 and len(endpoints.sources.specs) == 1)
        await api.put(SLICES, {**endpoint_slice("llama"), "endpoints": "none"})
        await until(lambda: "llama: the API server sent no valid EndpointSlice" in str(status(endpoints)["problems"]))
        assert addresses(endpoints) == ["10.0.0.1:8000"]
