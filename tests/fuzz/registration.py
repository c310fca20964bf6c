"""Receives any registration of an endpoint, from a holder of the registration token.

The first line of the input is the path below the registration API, the rest is the body. Property: the reply is 4xx
with an error object; or the endpoint is listed as it was registered, the same registration renews it, and it is gone
when its lease has expired.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from regional_agent.endpoints.endpoint_registration import MAX_TTL_S, PATH, Registrations
from regional_agent.endpoints.endpoint_set import EndpointSet
from regional_agent.endpoints.endpoint_sources import EndpointSettings
from regional_agent.upstream.address import Address
from regional_agent.upstream.upstream_pool import UpstreamPool
from tests.support.clocks import SetClock

WORDS = (
    *(
        b'"url":"http://10.0.0.1:8000"',
        b'"models":["m"]',
        b'"slots":4',
        b'"queue":',
        b'"ttl_s":',
        b'"for_s":',
        b'"zone":"a"',
    ),
    *(b'"engine":"vllm"', b'"version":"', b'"health":"/health"', b'"metrics_port":', b'"accelerator":"h100"'),
    *(b"1" + b"0" * 320, b'"health":{"interval_s":'),
    *(b"https://", b"[::1]", b"169.254.169.254", b"[::ffff:169.254.169.254]", b"%25", b"@", b"1e999", b"true", b"\xff"),
)

TOKEN = b"0123456789abcdef-registration"
BEARER = b"Bearer " + TOKEN


_FOLDER = TemporaryDirectory()
_FILE = Path(_FOLDER.name) / "endpoints.yaml"
_TOKEN_FILE = Path(_FOLDER.name) / "registration.token"
_TOKEN_FILE.touch(mode=0o600)
_TOKEN_FILE.write_bytes(TOKEN)
_FILE.write_text("- {name: fixed, url: 'http://127.0.0.1:1', models: [m], slots: 4}\n")


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    name, _, body = data.partition(b"\n")
    path, clock = PATH + b"/" + name, SetClock(0.0)
    endpoints = EndpointSet(EndpointSettings(_FILE), UpstreamPool(), Random(1))
    registrations = Registrations(endpoints, _TOKEN_FILE, clock)
    reply = registrations.handle(b"PUT", path, BEARER, body)
    assert reply.status in (201, 400, 401, 405, 409)
    msgspec.json.decode(reply.body)
    if reply.status == 201:
        (made,) = (endpoint for endpoint in endpoints.every() if endpoint.name == name.decode("latin-1"))
        assert Address.parse(f"http{'s' if made.address.tls else ''}://{made.address}") == made.address
        assert registrations.handle(b"PUT", path, BEARER, body).status == 200
        assert registrations.handle(b"GET", PATH, BEARER, b"").status == 200
        clock.now = MAX_TTL_S + 1.0
        registrations.expire()
    assert [endpoint.name for endpoint in endpoints.every() if not endpoint.view.draining] == ["fixed"]
    notice = registrations.handle(b"POST", PATH + b"/fixed/preemption", BEARER, body)
    assert notice.status in (202, 400)
    left = [] if notice.status == 202 else ["fixed"]
    assert [endpoint.name for endpoint in endpoints.every() if not endpoint.view.draining] == left
