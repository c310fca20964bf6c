"""Event documents: compiled with their time zone, refused with their line, and absent from other policies."""

from __future__ import annotations

import msgspec
import pytest

from control_plane.policy.bundle_errors import PolicyRefused
from control_plane.policy.compiler import compile_bundle
from control_plane.policy.folder import read_folder
from penstock.policy.kinds.operations import Event
from tests.support.paths import POLICIES

FILES = read_folder(POLICIES / "examples" / "spillover")
TEXT = """apiVersion: penstock/v1
kind: Event
name: launch
starts_at: 2026-12-01T09:00
time_zone: Europe/Berlin
duration_s: 7200
factor: 3
models: [llama-3.1-8b]
"""


def test_an_event_begins_at_its_local_time() -> None:
    policy = compile_bundle({**FILES, "events.yaml": TEXT})
    assert policy.events == (
        Event("launch", 1_796_112_000.0, 7200.0, 3.0, ("llama-3.1-8b",), (), "events.yaml:3", "Europe/Berlin"),
    )
    assert b"events" not in msgspec.json.encode(compile_bundle(FILES))


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("factor: 3", "factor: 0.5", "events.yaml:7: factor: "),
        ("factor: 3", "factor: 1000", "events.yaml:7: factor: "),
        ("duration_s: 7200", "duration_s: -1", "events.yaml:6: duration_s: "),
        ("[llama-3.1-8b]", "[llama]", "events.yaml:8: models[0]: there is no Model llama"),
        ("Europe/Berlin", "Europe/Nowhere", "events.yaml:5: time_zone: "),
        ("2026-12-01T09:00", "tomorrow", "events.yaml:4: starts_at: "),
    ],
)
def test_an_invalid_event_is_refused_with_its_line(old: str, new: str, error: str) -> None:
    with pytest.raises(PolicyRefused) as raised:
        compile_bundle({**FILES, "events.yaml": TEXT.replace(old, new)})
    assert error in str(raised.value)
