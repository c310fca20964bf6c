"""Reads any value that stands in Redis as the load of another agent.

The input is split at line feeds into the values of several agents. Property: what is invalid is skipped
and does not affect the values beside it; loads are within their limits; what was accepted reads the same again.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.shared_load.shared_load import MAX_REQUESTS, MAX_US, SharedLoad
from regional_agent.upstream.upstream_pool import UpstreamPool

WORDS = (b'{"loads":{"gpu-0":[1,2,3]},"waiting":{"m":[1,0,5,7]}}', b'"loads":', b'"waiting":', b"\n", b"9" * 30, b"-1")

GOOD = b'{"loads":{"gpu-0":[1,2,3]},"waiting":{}}'


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    values = data.split(b"\n")
    view = _view()
    view.receive([*values, GOOD], 1.0)
    assert view._remote_loads["gpu-0"].requests >= 1
    view.fade()
    for value in values[:4]:
        alone = _view()
        alone.receive([value], 1.0)
        for requests, prefill_us, decode_us in alone._remote_loads.values():
            assert 0 <= requests <= MAX_REQUESTS
            assert 0 <= prefill_us <= MAX_US
            assert 0 <= decode_us <= MAX_US
        again = _view()
        again.receive([_published(alone)], 1.0)
        assert (again._remote_loads, again._remote_queues) == (alone._remote_loads, alone._remote_queues)


def _published(view: SharedLoad) -> bytes:
    """What an agent publishes that has the load that `view` received."""
    loads = {name: tuple(load) for name, load in view._remote_loads.items()}
    waiting = {model: queues[0] for model, queues in view._remote_queues.items()}
    return msgspec.json.encode({"loads": loads, "waiting": waiting})


def _view() -> SharedLoad:
    return SharedLoad(_endpoints(), shared=True, clock=lambda: 2.0)


@cache
def _endpoints() -> EndpointSet:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "endpoints.yaml"
        file.write_text("- {name: gpu-0, url: 'http://127.0.0.1:1', models: [m], slots: 4}\n")
        return EndpointSet(file, UpstreamPool(), Random(1))
