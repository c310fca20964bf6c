"""Signed heads reveal changes that the chain alone does not: a removed end, and a recomputed log."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import msgspec
import pytest

from penstock.log_chains.access_log_chain import ChainHead, ChainWriter, chained_line, epoch_of, genesis
from penstock.log_chains.log_ends import SignedHeads
from penstock.log_chains.residency_report import ReportBuilder, ResidencyReport
from penstock.log_chains.signed_head import BadHead, read_head, sign_head
from penstock.wire.identity import TrustBundle
from tests.support.identities import FLEET, START, agent_id, authority, control_plane_id, identity, trust

HOUR_S = 3600.0
AGENT = identity(agent_id("eu-de", "a"))
EPOCH = epoch_of("eu-de", "a", int(START * 1e9))
NEXT_EPOCH = epoch_of("eu-de", "a", int((START + 10 * HOUR_S) * 1e9))


def log(epoch: str = EPOCH, tenant: str = "acme", count: int = 10) -> list[bytes]:
    """The log of an agent with one request an hour, from an hour after its start."""
    started_at = ChainHead(epoch, 0, "").started_at
    requests = [
        {"at": started_at + hour * HOUR_S, "request_id": f"r{hour}", "tenant": tenant, "kind": "home"}
        | {"server": "eu-de", "outcome": "ok", "origin": "eu-de", "residency_class": "eu-de+eu-es"}
        for hour in range(1, count + 1)
    ]
    block = msgspec.json.Encoder().encode_lines(requests)
    return ChainWriter(epoch, 1.0).chained(block, 1)[0].splitlines(keepends=True)


def head(lines: list[bytes], seq: int) -> ChainHead:
    if not seq:
        return ChainHead(EPOCH, 0, genesis(EPOCH))
    line = chained_line(lines[seq - 1].rstrip(b"\n"))
    assert line is not None
    return line.head


def signed(lines: list[bytes], seq: int, *, final: bool = False, after_s: float = 60.0) -> bytes:
    """The head that the agent signs after the line `seq`."""
    epoch = head(lines, seq).started_at
    return sign_head(head(lines, seq), epoch + seq * HOUR_S + after_s, final, AGENT)


def report(
    heads: list[bytes], *files: list[bytes], revoked: tuple[str, ...] = (), fleet: str = FLEET, **period: float
) -> ResidencyReport:
    verified = SignedHeads(TrustBundle([authority().certificate], revoked).for_fleet(fleet))
    verified.add_file("heads", heads)
    builder = ReportBuilder(
        START + period["since_h"] * HOUR_S if "since_h" in period else -inf,
        START + period["until_h"] * HOUR_S if "until_h" in period else inf,
        signed=verified,
    )
    for number, lines in enumerate(files):
        builder.add_file(f"file-{number}", lines)
    return builder.report()


LOG = log()
HOURLY = [signed(LOG, seq) for seq in range(11)]
CLOSED = [*HOURLY, signed(LOG, 10, final=True)]


def test_a_closed_log_is_proven_as_a_whole_and_a_running_one_up_to_its_newest_signature() -> None:
    closed = report(CLOSED, LOG[:4], LOG[4:])
    assert (closed.proven, closed.unproved, closed.epochs[0].signed_seq) == (True, (), 10)
    running = report(HOURLY, LOG)
    assert (running.proven, running.consistent) == (False, True)
    (span,) = running.unproved
    assert (span.since, span.until, span.after_seq) == (pytest.approx(START + 10 * HOUR_S + 60, abs=0.01), None, 10)
    assert report(HOURLY, LOG, until_h=10.0).proven


def test_heads_of_another_fleet_of_the_authority_prove_nothing() -> None:
    other = report(CLOSED, LOG, fleet="staging")
    assert not other.proven
    assert any("another fleet" in fault.problem for fault in other.faults)


def test_a_log_without_signatures_or_with_those_of_others_is_unproved() -> None:
    assert not ReportBuilder().report().proven
    unsigned = report([], LOG)
    assert [(span.epoch, span.since, span.until) for span in unsigned.unproved] == [(EPOCH, None, None)]
    for unknown_peer in (
        identity(agent_id("eu-de", "b")),
        identity(control_plane_id()),
        identity(agent_id("eu-de", "a"), 1),
    ):
        result = report([sign_head(head(LOG, 10), START + 11 * HOUR_S, True, unknown_peer)], LOG)
        assert ["not accepted" in fault.problem for fault in result.faults] == [True]
        assert not result.proven
    revoked = report(CLOSED, LOG, revoked=(AGENT.peer.serial,))
    assert len(revoked.faults) == len(CLOSED)
    assert not revoked.proven


@pytest.mark.parametrize("length", [0, 3, 9])
def test_a_cut_off_end_shows(length: int) -> None:
    result = report(CLOSED, LOG[:length])
    assert not result.consistent
    missing = f"lines {length + 1} to {length + 1} of {EPOCH} are missing: its agent signed line {length + 1}"
    assert missing in [fault.problem for fault in result.faults]


def test_an_end_that_is_cut_off_together_with_its_signatures_is_unproved() -> None:
    result = report(HOURLY[:4], LOG[:3])
    assert (result.consistent, result.proven) == (True, False)
    assert [span.after_seq for span in result.unproved] == [3]


def test_a_log_that_was_written_anew_shows() -> None:
    result = report(CLOSED, log(tenant="other"))
    assert "line 1 of" in result.faults[0].problem
    assert "was signed with another digest" in result.faults[0].problem


def test_lines_that_others_added_are_unproved() -> None:
    added = log(count=12)
    assert added[:10] == LOG
    for heads, period in ((CLOSED, {}), (HOURLY, {"until_h": 12.0})):
        result = report(heads, added, **period)
        assert [span.after_seq for span in result.unproved] == [10]


def test_the_first_line_of_a_rotated_file_is_verified_by_the_signature_before_it() -> None:
    first = LOG[5].replace(b"acme", b"ecma")
    assert report(CLOSED, LOG[5:], since_h=6.5).proven
    changed = report(CLOSED, [first, *LOG[6:]], since_h=6.5)
    assert [(fault.line, "which was signed" in fault.problem) for fault in changed.faults] == [(1, True)]


def test_what_is_outside_the_period_need_not_be_given() -> None:
    assert report(CLOSED, LOG[:5], until_h=5.01).proven
    assert not report(CLOSED, LOG[:4], until_h=5.01).proven
    assert report(CLOSED, LOG[5:], since_h=6.0).consistent is False, "line 5 may be of the period"
    idle = log(NEXT_EPOCH, count=1)
    heads = [*CLOSED, sign_head(ChainHead(NEXT_EPOCH, 0, genesis(NEXT_EPOCH)), START + 10.5 * HOUR_S, False, AGENT)]
    assert report(heads, LOG, until_h=10.4).proven
    assert report([*heads, signed(idle, 1, final=True)], idle, since_h=10.4).proven, "it ended before the period"


def test_the_time_from_a_kill_to_the_next_start_is_unproved() -> None:
    following = log(NEXT_EPOCH, count=1)
    result = report([*HOURLY[:9], signed(following, 1, final=True)], LOG[:9], following)
    (span,) = result.unproved
    assert (span.epoch, span.until, span.after_seq) == (EPOCH, pytest.approx(START + 10 * HOUR_S, abs=0.01), 8)
    assert report([*HOURLY[:9], signed(following, 1, final=True)], LOG[:9], following, until_h=8.0).proven


@pytest.mark.parametrize(
    "change",
    [
        {"until_ms": 2**63},
        {"until_ms": 10**400},
        {"until_ms": -1},
        {"final": True},
        {"signed_head": "eu-de/a/1:1"},
        {"signed_head": f"{EPOCH}:2:{'0' * 64}"},
        {"signature": "x"},
        {"signature": ""},
        {"certificate": "AAAA"},
        {"certificate": "A" * 20_000},
    ],
)
def test_a_changed_head_is_not_accepted(change: dict[str, Any]) -> None:
    line = HOURLY[3]
    assert read_head(line, trust()).head == head(LOG, 3)
    with pytest.raises(BadHead):
        read_head(json.dumps(json.loads(line) | change).encode(), trust())
