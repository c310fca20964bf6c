"""What the answers to health probes mean."""

import pytest

from penstock.health.endpoint_health import ProbeOutcome
from penstock.health.engines.engine_kinds import ENGINES, EngineKind
from penstock.health.health_check import (
    HealthCheck,
    HealthCheckOptions,
    answer_outcome,
    is_busy_text,
    is_rejection,
    unready_because,
)

GOOD, UNREADY, BUSY = ProbeOutcome.GOOD, ProbeOutcome.UNREADY, ProbeOutcome.BUSY


@pytest.mark.parametrize(
    ("status", "body", "has_retry_after", "outcome"),
    [
        (200, b"", False, GOOD),
        (200, b"OK", False, GOOD),
        (200, b'{"status": "ok"}', False, GOOD),
        (200, b'{"status": "READY"}', False, GOOD),
        (200, b'{"status": "BUSY"}', False, BUSY),
        (200, b"BUSY\n", False, BUSY),
        (200, b"busy", False, BUSY),
        (200, b'{"status": "SETUP_FAILED"}', False, UNREADY),
        (200, b'{"status": "STARTING"}', False, UNREADY),
        (200, b"FAILED", False, UNREADY),
        (200, b"the model FAILED at something once", False, GOOD),
        (200, b'{"status": {"busy": true}}', False, GOOD),
        (200, b'{"status": "BUSY"', False, GOOD),
        (200, b"[" * 5000, False, GOOD),
        (200, b"\xff\xfe", False, GOOD),
        (429, b"", False, BUSY),
        (529, b"", False, BUSY),
        (503, b"", False, UNREADY),
        (503, b"", True, BUSY),
        (503, b"server busy", False, BUSY),
        (503, b'{"status": "BUSY"}', False, BUSY),
        (503, b'{"error": {"message": "no slot available"}}', False, BUSY),
        (503, b'{"error": {"message": "Loading model"}}', False, UNREADY),
        (503, b"business is closed", False, UNREADY),
        (500, b"busy", False, UNREADY),
        (404, b"", False, UNREADY),
        (204, b"", False, UNREADY),
    ],
)
def test_answers(status: int, body: bytes, has_retry_after: bool, outcome: ProbeOutcome) -> None:
    assert answer_outcome(HealthCheck(), status, body, has_retry_after=has_retry_after) is outcome


def test_a_status_and_a_text_may_be_expected() -> None:
    check = HealthCheck(status=(200, 204), body='"loaded": true', busy_body="one moment")
    assert answer_outcome(check, 204, b'{"loaded": true}', has_retry_after=False) is GOOD
    assert answer_outcome(check, 200, b'{"loaded": false}', has_retry_after=False) is UNREADY
    assert answer_outcome(check, 500, b"one moment, please", has_retry_after=False) is BUSY
    busy_is_good = HealthCheck(body="BUSY")
    assert answer_outcome(busy_is_good, 200, b"BUSY", has_retry_after=False) is GOOD


def test_an_entry_overrides_single_options_of_its_kind() -> None:
    cog = ENGINES[EngineKind.COG].health
    own = HealthCheckOptions(timeout_s=9.0).applied_to(cog)
    assert (own.path, own.timeout_s, own.busy_s) == ("/health-check", 9.0, cog.busy_s)
    assert HealthCheckOptions().applied_to(cog) is cog


@pytest.mark.parametrize(
    ("body", "rejection", "busy"),
    [
        (b"", True, False),
        (b" \r\n", True, False),
        (b'{"error":{"message":"The request queue is full.","type":"service_unavailable"}}', True, True),
        (b'{"error": "Exceeds maximum queue size"}', True, False),
        (b"Request dropped due to backpressure", True, False),
        (b"<title>503 Service Temporarily Unavailable</title>", True, False),
        (b'{"error":{"message":"Loading model"}}', True, False),
        (b'{"error": "CUDA error: an illegal memory access"}', False, False),
        (b"Service Unavailable: the engine core died", False, False),
        (b"no healthy upstream", False, False),
        (b"\xff" * 9000 + b"busy", True, False),
    ],
)
def test_what_a_503_means_for_the_request(body: bytes, rejection: bool, busy: bool) -> None:
    assert (is_rejection(body), is_busy_text(body)) == (rejection, busy)


@pytest.mark.parametrize(
    ("check", "status", "body", "stated"),
    [
        (HealthCheck(), 200, b'{"status": "setup_failed"}', "with 200 and the state SETUP_FAILED"),
        (HealthCheck(body="ok"), 200, b"not yet", "with 200 without the text that its entry expects"),
        (HealthCheck(), 500, b"CUDA error:\n\x1b[1m lost", "with 500: CUDA error: [1m lost"),
        (HealthCheck(), 500, b"x" * 200, "with 500: " + 80 * "x"),
        (HealthCheck(), 503, b"<html>", "with 503"),
        (HealthCheck(), 503, b"", "with 503"),
    ],
)
def test_operators_are_told_what_an_unready_server_states(
    check: HealthCheck, status: int, body: bytes, stated: str
) -> None:
    assert unready_because(check, status, body) == f"it answers the health probe {stated}"
