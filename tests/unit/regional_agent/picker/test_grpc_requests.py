"""The statuses of engines over gRPC are read from headers of any size."""

from __future__ import annotations

import pytest

from regional_agent.picker.grpc_requests import http_status


@pytest.mark.parametrize(
    ("value", "status"), [(b"0", 200), (b"14", 503), (b"77", 500), (b"", 500), (b"-1", 500), (b"9" * 5000, 500)]
)
def test_the_status_of_an_engine(value: bytes, status: int) -> None:
    assert http_status([(b"grpc-status", value)]) == status
