from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.shared_load.shared_load import QueueSummary, SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool

LIMIT = 6


@pytest.fixture
def endpoints(tmp_path: Path) -> EndpointSet:
    file = tmp_path / "endpoints.yaml"
    file.write_text(
        "".join(
            f"- {{name: gpu-{n}, url: 'http://127.0.0.1:{n + 1}', models: [m], slots: 4, queue: 2}}\n" for n in (0, 1)
        )
    )
    return EndpointSet(file, UpstreamPool(), Random(1))


def in_flight(endpoints: EndpointSet) -> list[int]:
    return [endpoint.view.in_flight for endpoint in endpoints.every()]


@pytest.mark.parametrize("invalid", ["[-1,0,0]", "[1,1e99,0]", "[1,2]", '"x"', "[1,0,100000000000000]"])
def test_only_the_invalid_entry_of_a_load_is_dropped(endpoints: EndpointSet, invalid: str) -> None:
    load = SharedLoad(endpoints, shared=True)
    queues = '{"bad":[-1,0,0,1],"m":[3,-1,250,7]}'
    load.receive([b'{"loads":{"gpu-0":%b,"gpu-1":[3,0,0]},"waiting":%b}' % (invalid.encode(), queues.encode())], 0.0)
    assert in_flight(endpoints) == [0, 3]
    assert load.remote_queues("m") == [QueueSummary(3, -1, 250, 7)]
    assert load.remote_queues("bad") == []


def test_an_agent_whose_load_is_invalid_as_a_whole_does_not_hide_the_others(endpoints: EndpointSet) -> None:
    load = SharedLoad(endpoints, shared=True)
    load.receive([b"\xff", b"[]", b'{"loads":7}', b'{"loads":{"gpu-0":[2,0,0]}}'], 0.0)
    assert in_flight(endpoints) == [2, 0]


def test_the_other_agents_requests_count_up_to_the_limit_of_the_endpoint(
    endpoints: EndpointSet, tmp_path: Path
) -> None:
    load = SharedLoad(endpoints, shared=True)
    published = msgspec.json.encode({"loads": {"gpu-0": (900_000, 0, 0), "gpu-1": (LIMIT, 0, 0)}})
    load.receive([published, published], 0.0)
    assert in_flight(endpoints) == [LIMIT, LIMIT]
    load.receive([], 0.0)
    assert in_flight(endpoints) == [0, 0]
