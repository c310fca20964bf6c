"""The field `health` of an endpoint's entry."""

from pathlib import Path
from typing import Any

import pytest

from penstock.health.health_check import HealthCheckOptions
from regional_agent.endpoints.endpoint_fields import EndpointSpec
from regional_agent.endpoints.endpoint_file import parse_endpoints
from regional_agent.endpoints.endpoint_options import InvalidField, health_check_options


def test_a_text_is_the_path() -> None:
    assert health_check_options("/ok?deep=1") == HealthCheckOptions(path="/ok?deep=1")


def test_a_mapping_sets_single_options() -> None:
    given = {"interval_s": 2, "timeout_s": 5.5, "unhealthy_threshold": 3, "status": [200, 204], "body": "READY"}
    assert health_check_options(given) == HealthCheckOptions(None, 2.0, 5.5, 3, None, (200, 204), "READY")
    assert health_check_options({"status": 204, "busy_s": 0}) == HealthCheckOptions(status=(204,), busy_s=0.0)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3, "neither a path nor a mapping"),
        ({}, "neither a path nor a mapping"),
        ("health", "is not a path"),
        ({"path": "ok"}, "path: 'ok' is not a path"),
        ({"pause_s": 1}, "pause_s: no such field"),
        ({"interval_s": 0}, "interval_s: not a time"),
        ({"interval_s": True}, "interval_s: not a time"),
        ({"timeout_s": float("nan")}, "timeout_s: not a time"),
        ({"timeout_s": 10**400}, "timeout_s: not a time"),
        ({"timeout_s": "1"}, "timeout_s: not a time"),
        ({"busy_s": -1}, "busy_s: not a time"),
        ({"healthy_threshold": 0}, "healthy_threshold: not a whole number"),
        ({"unhealthy_threshold": 1.5}, "unhealthy_threshold: not a whole number"),
        ({"status": []}, "status: not a list"),
        ({"status": [99]}, "status: 99 is not a status"),
        ({"status": [True]}, "status: True is not a status"),
        ({"body": ""}, "body: not a text"),
        ({"busy_body": "x" * 300}, "busy_body: more than"),
    ],
)
def test_errors_name_the_option(value: Any, problem: str) -> None:
    with pytest.raises(InvalidField, match=problem):
        health_check_options(value)


def test_files_may_have_fractions_and_lists() -> None:
    text = (
        "- name: a\n  url: http://127.0.0.1:1\n  models: [m]\n  slots: 1\n"
        "  health: {interval_s: 0.25, status: [200, 204]}\n"
    )
    (spec,) = parse_endpoints(text.encode(), Path("endpoints.yaml"))
    assert isinstance(spec, EndpointSpec)
    assert spec.health == HealthCheckOptions(interval_s=0.25, status=(200, 204))
