"""An agent reads the GPUs of an endpoint from the host of its engine, and keeps no value that it could not renew."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from regional_agent.endpoints.endpoint import Endpoint, OutlierDetection
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.probing import gpu_readings
from regional_agent.telemetry.by_endpoint.endpoint_reports import endpoint_report
from regional_agent.upstream.address import Address
from regional_agent.upstream.http_fetch import Fetched
from regional_agent.upstream.upstream_pool import UpstreamPool
from regional_agent.upstream.upstream_sink import UpstreamError

PAGE = b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 20\nDCGM_FI_DEV_GPU_UTIL{gpu="1"} 80\n'


def page(body: bytes, status: int = 200) -> Fetched:
    return Fetched(status, {}, body)


async def test_the_page_of_the_endpoints_host_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Address] = []
    answers: list[Fetched | UpstreamError] = []
    logged: list[str] = []

    async def fetch(connections: UpstreamPool, address: Address, *_: Any, **__: Any) -> Fetched:
        asked.append(address)
        answer = answers.pop(0)
        if isinstance(answer, UpstreamError):
            raise answer
        return answer

    monkeypatch.setattr(gpu_readings, "fetch", fetch)
    spec = EndpointSpec(
        "gpu", Address("10.0.0.1", 8000, True, server_name="x"), ("m",), 4, gpu_metrics_port=9400, gpus=("1",)
    )
    endpoint = Endpoint(spec, OutlierDetection())
    for answer, utilisation, problem in (
        (page(PAGE), 0.8, ""),
        (page(PAGE.replace(b"80", b"-8")), None, "DCGM_FI_DEV_GPU_UTIL of -8.0 is not from 0 to 100"),
        (page(PAGE.replace(b"80", b"-8")), None, "DCGM_FI_DEV_GPU_UTIL of -8.0 is not from 0 to 100"),
        (page(PAGE), 0.8, ""),
        (page(b"", 404), None, "/metrics answers 404"),
        (page(PAGE), 0.8, ""),
        (UpstreamError("refused"), None, "refused"),
    ):
        answers.append(answer)
        with capture_logs() as logs:
            await gpu_readings.read(endpoint, UpstreamPool())
        logged += [each["error"] for each in logs]
        reported = endpoint_report(endpoint).gpu
        assert (None if reported is None else reported.utilisation, endpoint.reported.gpu_problem) == (
            utilisation,
            problem,
        )
    assert logged == ["DCGM_FI_DEV_GPU_UTIL of -8.0 is not from 0 to 100", "/metrics answers 404", "refused"]
    assert set(asked) == {Address("10.0.0.1", 9400)}, "without TLS, which is that of the engine"
