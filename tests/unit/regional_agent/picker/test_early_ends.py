"""Envoy's access log as the picker reads it: which requests an endpoint broke off, and which were left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.accounts.outcome_rules import Outcome
from regional_agent.picker.early_ends import MAX_FIELDS, EarlyEnds, outcomes_in
from regional_agent.picker.processing_request import LB_NAMESPACE, STREAM
from regional_agent.picker.protobuf_wire import BadMessage, with_length
from tests.support.ext_proc_messages import StreamAccessLogsMessage

CUT, STALLED = Outcome.ENGINE_CUT, Outcome.STALLED


def message(*entries: tuple[str, Sequence[str]], namespace: str = LB_NAMESPACE) -> bytes:
    """The message with entries: the identifier of each request, and its flags."""
    found = StreamAccessLogsMessage()
    found.identifier.log_name = "penstock"
    for stream, flags in entries:
        entry = found.http_logs.log_entry.add()
        entry.protocol_version = 2
        entry.common_properties.metadata.filter_metadata["other"].fields[STREAM].string_value = "x"
        fields = entry.common_properties.metadata.filter_metadata[namespace].fields
        fields["another"].string_value = "y"
        if stream:
            fields[STREAM].string_value = stream
        for flag in flags:
            setattr(entry.common_properties.response_flags, flag, True)
    return bytes(found.SerializeToString())


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        (["upstream_connection_termination"], CUT),
        (["upstream_remote_reset"], CUT),
        (["upstream_protocol_error"], CUT),
        (["upstream_connection_termination", "upstream_retry_limit_exceeded"], CUT),
        (["stream_idle_timeout"], STALLED),
        (["downstream_connection_termination"], None),
        (["downstream_connection_termination", "upstream_connection_termination"], None),
        (["local_reset"], None),
        ([], None),
    ],
)
def test_the_flags_of_an_entry_state_who_ended_a_request(flags: list[str], outcome: Outcome | None) -> None:
    reports: list[Outcome] = []
    ends = EarlyEnds()
    mine, other = ends.add(reports.append), ends.add(lambda outcome: pytest.fail("another request"))
    assert mine != other
    ends.report(message(("of another agent", flags), (mine.decode(), flags)))
    assert reports == ([] if outcome is None else [outcome])
    ends.report(message((mine.decode(), flags), namespace="a client's"))
    ends.discard(mine)
    ends.report(message((mine.decode(), flags)))
    assert len(reports) <= 1


def test_identifiers_of_agents_differ() -> None:
    assert EarlyEnds().add(lambda outcome: None) != EarlyEnds().add(lambda outcome: None)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_read_or_rejected(noise: bytes, at: int) -> None:
    whole = message(("a", ["upstream_remote_reset"]), ("b", ["stream_idle_timeout"]))
    assert outcomes_in(whole) == [(b"a", CUT), (b"b", STALLED)]
    for data in (noise, whole[:at], whole[:at] + noise + whole[at:]):
        try:
            outcomes_in(data)
        except BadMessage:
            continue


def test_a_message_with_too_many_entries_is_rejected() -> None:
    with pytest.raises(BadMessage):
        outcomes_in(with_length(2, b"\x0a\x00" * (MAX_FIELDS + 1)))
