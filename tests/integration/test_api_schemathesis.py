"""The API conforms to /openapi.json: schemathesis against a real control plane on a real etcd.

Operations are called with valid and with invalid data: no server error, no undocumented response, no malformed input
accepted, no authenticated operation open. schemathesis derives 3,000 requests from the boundaries of the description.
Each run calls other operations with another share of them (tests/support/examples.py); `make test-long` sends all.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from http.cookiejar import DefaultCookiePolicy
from itertools import count
from random import Random

import httpx
import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import ignored_auth, positive_data_acceptance
from schemathesis.filters import HasAPIOperation
from schemathesis.generation.meta import TestPhase
from schemathesis.schemas import BaseSchema

from lab.server_starting import start_etcd
from tests.support.control_planes import OPERATOR, PLANET, REGIONS, TOKEN, ControlPlaneServer, control_planes
from tests.support.examples import SHARE, examples
from tests.support.reports import offered, packed, report
from tests.support.wait import PATIENCE_S

EXAMPLES = examples(8)
"""Requests for each operation and kind of data."""

ENDLESS = "/v1/events"
"""A stream does not end; tests/integration/test_api_resources.py reads it."""

EVERY = max(1, round(1 / SHARE))
"""Of the requests that schemathesis derives from boundaries, one of this number is sent."""

FIRST = Random().randrange(EVERY)

SEED = Random().random()


def is_chosen(context: HasAPIOperation) -> bool:
    """Whether this run calls the operation. To derive the requests of an operation costs more than to send them."""
    return SHARE >= 1.0 or Random(f"{SEED} {context.operation.label}").random() < 2 * SHARE


chosen_operations = schemathesis.pytest.from_fixture("schema").exclude(path=ENDLESS).include(is_chosen)
_clients = count()


@chosen_operations.auth()
class Admin:
    """The credentials of a call; none where the case is an anonymous call."""

    def get(self, case: schemathesis.Case, context: schemathesis.AuthContext) -> str:
        return f"Bearer {TOKEN}"

    def set(self, case: schemathesis.Case, data: str, context: schemathesis.AuthContext) -> None:
        case.headers = {**(case.headers or {}), "Authorization": data}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlaneServer]:
    directory = tmp_path_factory.mktemp("schemathesis")
    # Each request has another client address, because failed logins of some cases would block the address.
    settings = {"POLICY_DIR": str(PLANET), "TRUSTED_PROXIES": "127.0.0.1"}
    with (
        start_etcd(directory / "etcd") as etcd,
        control_planes("s", directory, etcd.endpoint, policy_settings=settings) as (server,),
    ):
        yield server


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Connections that stay open, no cookies, and no search of the environment for proxies at each request."""
    with requests.Session() as session:
        session.trust_env = False
        session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        yield session


@pytest.fixture(scope="module")
def schema(server: ControlPlaneServer) -> BaseSchema:
    """The API description that the control plane serves."""
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


# One test for all operations: separate tests would have the same name.
@pytest.mark.long
@chosen_operations.parametrize()
@settings(max_examples=EXAMPLES, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(600)
def test_the_api_conforms_to_its_description(
    case: schemathesis.Case, server: ControlPlaneServer, session: requests.Session
) -> None:
    number = next(_clients)
    if case.meta is not None and case.meta.phase.name is TestPhase.COVERAGE and number % EVERY != FIRST:
        return
    client = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    # The validity of a body, location or period depends on policy and other fields, which a schema cannot express.
    lenient = bool(case.operation.body) or case.operation.path in ("/v1/dns", "/v1/steer", "/v1/usage")
    case.call_and_validate(
        base_url=server.url,
        session=session,
        headers={"x-forwarded-for": client},
        excluded_checks=[positive_data_acceptance] if lenient else [],
    )


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v1/regions/{name}", {"name": REGIONS[0]}),
        ("/v1/tenants/{name}", {"name": "personal"}),
        ("/v1/tenants/{name}/keys", {"name": "personal"}),
        ("/v1/plans/{generation}", {"generation": 1}),
        ("/v1/plans/current", {}),
        ("/v1/regions", {}),
        ("/v1/endpoints", {}),
        ("/v1/agents", {}),
        ("/v1/capacity/recommendations", {}),
        ("/v1/capacity/takeover", {}),
        ("/v1/status", {}),
        ("/v1/history", {}),
    ],
)
def test_existing_objects_conform_to_the_description(
    server: ControlPlaneServer, schema: BaseSchema, path: str, named: dict[str, object]
) -> None:
    for region in REGIONS:
        body, headers = packed(report(region, offered(5.0, "eu-de", "eu-es"), seq=next(_clients)), server.name)
        assert httpx.post(f"{server.url}/v1/reports", content=body, headers=dict(headers)).status_code == 202
    case = schema[path]["GET"].Case(path_parameters=named)
    deadline = time.monotonic() + PATIENCE_S
    while (response := case.call(base_url=server.url, headers=OPERATOR)).status_code != 200:
        assert time.monotonic() < deadline, response.text
        time.sleep(0.05)
    case.validate_response(response, excluded_checks=[ignored_auth])


@schemathesis.serializer("application/msgpack")
def as_msgpack(context: schemathesis.SerializationContext, value: object) -> bytes:
    """Encode a document as agents encode reports."""
    return msgspec.msgpack.encode(value)


@schemathesis.serializer("application/x-tar")
def as_it_is(context: schemathesis.SerializationContext, value: object) -> bytes:
    """Return bytes unchanged, and other values as text."""
    return value if isinstance(value, bytes) else str(value).encode()
