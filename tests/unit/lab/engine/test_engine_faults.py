"""Fault settings: new settings replace all previous ones, and invalid settings change nothing."""

from __future__ import annotations

import pytest

from lab.engine.faults import NO_FAULTS, Faults, parse_faults


def test_absent_faults_are_off() -> None:
    assert parse_faults(b"{}") == NO_FAULTS
    assert parse_faults(b'{"slow": 4, "die_mid_stream": 3}') == Faults(slow=4, die_mid_stream=3)
    assert parse_faults(Faults(hang=True, error_rate=0.5, error_status=503).encoded()) == Faults(
        hang=True, error_rate=0.5, error_status=503
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"slow": 0.5}', "slow"),
        (b'{"error_rate": 1.1}', "error_rate"),
        (b'{"error_status": 404}', "error_status"),
        (b'{"die_mid_stream": -1}', "die_mid_stream"),
        (b'{"hang": 1}', "hang"),
        (b'{"on_fire": true}', "on_fire"),
        (b"[]", "object"),
        (b"", "truncated"),
        (b"\xff", "malformed"),
    ],
)
def test_bad_input_is_refused_by_field(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_faults(body)
