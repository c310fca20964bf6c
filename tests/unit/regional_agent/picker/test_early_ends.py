"""Envoy's access log as the picker reads it: which requests an endpoint broke off, and which were left."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.accounts.outcome_rules import Outcome
from regional_agent.picker import early_ends
from regional_agent.picker.early_ends import (
    MAX_FIELDS,
    MAX_UNREPORTED,
    STREAM_HEADER,
    EarlyEnds,
    FailedAttempt,
    outcomes_in,
)
from regional_agent.picker.processing_request import LB_NAMESPACE, STREAM
from regional_agent.picker.protobuf_wire import BadMessage, with_length
from tests.support.ext_proc_messages import StreamAccessLogsMessage
from tests.support.wait import until

CUT, STALLED, LEFT = Outcome.ENGINE_CUT, Outcome.STALLED, Outcome.CLIENT_LEFT


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


def attempt(stream: str, status: int, flag: str = "", **headers: str) -> bytes:
    """The message about an attempt that failed, with the status of the endpoint or with a flag."""
    found = StreamAccessLogsMessage()
    entry = found.http_logs.log_entry.add()
    entry.common_properties.response_flags.local_reset = False
    if flag:
        setattr(entry.common_properties.response_flags, flag, True)
    entry.request.path = "/v1/chat/completions"
    entry.request.request_headers["x-request-id"] = "of a client"
    entry.request.request_headers[STREAM_HEADER.decode()] = stream
    entry.response.response_code.value = status
    entry.response.response_headers.update(headers)
    return bytes(found.SerializeToString())


class Ends:
    """The early ends of one agent, and the outcomes with which its requests ended."""

    def __init__(self) -> None:
        self.unreported = 0
        self.settled: list[Outcome | None] = []
        self.ends = EarlyEnds(self._note)

    def _note(self) -> None:
        self.unreported += 1

    def close(self, *flags: str, first: bool = True) -> bytes:
        """End a request early, whose entry has the flags, if any, and arrives before or after the end."""
        stream = self.ends.add()
        if flags and first:
            self.ends.report(message((stream.decode(), flags)))
        self.ends.closed(stream, self.settled.append)
        if flags and not first:
            self.ends.report(message((stream.decode(), flags)))
        return stream


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        (["upstream_connection_termination"], CUT),
        (["upstream_remote_reset"], CUT),
        (["upstream_protocol_error"], CUT),
        (["upstream_connection_termination", "upstream_retry_limit_exceeded"], CUT),
        (["stream_idle_timeout"], STALLED),
        (["upstream_request_timeout"], Outcome.TIMED_OUT),
        (["upstream_max_stream_duration_reached"], Outcome.TIMED_OUT),
        (["duration_timeout", "upstream_remote_reset"], Outcome.TIMED_OUT),
        (["downstream_connection_termination"], LEFT),
        (["downstream_protocol_error"], LEFT),
        (["downstream_remote_reset"], LEFT),
        (["downstream_connection_termination", "upstream_connection_termination"], LEFT),
        (["local_reset"], None),
        ([], None),
    ],
)
@pytest.mark.parametrize("first", [True, False])
async def test_the_flags_of_an_entry_state_who_ended_a_request(
    flags: list[str], outcome: Outcome | None, first: bool
) -> None:
    one = Ends()
    one.ends.report(message(("of another agent", flags)))
    stream = one.close(*flags, first=first)
    assert one.settled == ([] if outcome is None else [outcome])
    one.ends.report(message((stream.decode(), flags), namespace="a client's"))
    one.ends.discard(stream)
    one.ends.report(message((stream.decode(), flags)))
    one.ends.settle_all()
    assert (one.settled, one.unreported) == ([outcome], int(outcome is None))


async def test_no_entry_is_awaited_once_several_early_ends_had_none() -> None:
    one = Ends()
    for _ in range(MAX_UNREPORTED):
        stream = one.close()
        assert one.ends.settle_now(stream)
        assert not one.ends.settle_now(stream)
    one.close()
    assert one.settled == [None] * (MAX_UNREPORTED + 1)
    assert one.unreported == MAX_UNREPORTED + 1
    one.close("upstream_remote_reset")
    one.close("upstream_remote_reset", first=False)
    assert one.settled[-2:] == [CUT, CUT], "an entry shows that there is a log"
    one.ends.settle_all()


async def test_an_entry_is_not_awaited_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_ends, "LATE_S", 0.0)
    one = Ends()
    one.close()
    await until(lambda: one.settled == [None])


def test_the_failed_attempts_of_a_request_are_known_until_its_end() -> None:
    ends = Ends().ends
    stream, other = ends.add(), ends.add()
    ends.report(attempt(stream.decode(), 503, **{"retry-after": "3"}))
    ends.report(attempt(stream.decode(), 0, "upstream_connection_failure"))
    ends.report(attempt(stream.decode(), 0, "upstream_connection_termination"))
    ends.report(attempt("of another agent", 500))
    assert ends.failed_attempts(stream) == [
        FailedAttempt(503, [(b"retry-after", b"3")], True),
        FailedAttempt(0, [], False),
        FailedAttempt(0, [], True),
    ]
    assert ends.failed_attempts(other) == []
    ends.discard(stream)
    ends.report(attempt(stream.decode(), 500))
    assert ends.failed_attempts(stream) == []


def test_identifiers_of_agents_differ() -> None:
    one, two = Ends().ends, Ends().ends
    assert len({one.add(), one.add(), two.add(), two.add()}) == 4


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_read_or_rejected(noise: bytes, at: int) -> None:
    whole = message(("a", ["upstream_remote_reset"]), ("b", ["stream_idle_timeout"])) + attempt("c", 429)
    assert outcomes_in(whole) == [(b"a", CUT), (b"b", STALLED), (b"c", FailedAttempt(429, [], True))]
    for data in (noise, whole[:at], whole[:at] + noise + whole[at:]):
        try:
            outcomes_in(data)
        except BadMessage:
            continue


def test_a_message_with_too_many_entries_is_rejected() -> None:
    with pytest.raises(BadMessage):
        outcomes_in(with_length(2, b"\x0a\x00" * (MAX_FIELDS + 1)))
