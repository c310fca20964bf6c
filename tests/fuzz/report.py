"""Receives any report of an agent.

The input is a sequence of reports (MessagePack) that an agent signs, each after two bytes with its length; an input
that begins with `{` is JSON instead, one report a line. Property: each is accepted or ReportRefused; and whatever was
accepted, every number that the planner reads from the snapshot is finite and not negative.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from math import isfinite
from typing import NamedTuple

import msgspec

from control_plane.metrics import ControlPlaneMetrics
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.report_intake import ReportIntake, ReportReceipt, ReportRefused
from control_plane.policy.compiler import compile_bundle
from penstock.fleet.snapshot import demand, pools, reporting_regions, settled
from penstock.fleet.traffic_view import countries, spillover
from penstock.wire.signed_report import report_headers
from tests.support.identities import agent_keyring, control_plane_keyring, introduce
from tests.support.policy_bundle import BUNDLE

WORDS = (
    *(b'"region":"eu-de"', b'"agent":"agent-1"', b'"epoch":1', b'"seq":1', b'"sent_at":0', b'"pools":[', b'"demand":['),
    *(b'"peers":[{"region":"us-east","state":"failed","rtt_ms":1}]', b'"request_counts":{', b'"objectives":['),
    *(
        b'"endpoints":[["a","b",["m"],"z","h100","ready",1,0]]',
        b'"tenants":[{"tenant":"t","in_flight":1,"waiting":2}]',
        b"1e308",
        b"-1",
        b"18446744073709551615",
        b"null",
    ),
    *(b'{"model":"m","endpoints":1,"ready":1,"slots":4,"in_flight":0,"service_s":1.0}', b"\\ud800", b"\n{"),
)

_POLICY = compile_bundle(BUNDLE)
_RECEIVER = control_plane_keyring()
_AGENT = agent_keyring("eu-de")
_SENDER = introduce(_AGENT, _RECEIVER)
_METRICS = ControlPlaneMetrics()
_WALL_CLOCK = time.time()


class _Now(NamedTuple):
    """A clock."""

    time_s: float

    def __call__(self) -> float:
        return self.time_s


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    fleet = FleetSnapshot()
    intake = ReportIntake(
        _RECEIVER,
        fleet,
        policy=lambda: _POLICY,
        leading=lambda: ReportReceipt(True, None),
        metrics=_METRICS,
        clock=_Now(_WALL_CLOCK),
    )
    for body in _bodies(data):
        before = fleet.snapshot
        try:
            intake.receive(intake.accept_head(report_headers(_SENDER, _AGENT.identity.peer.certificate, body)), body)
        except ReportRefused as refused:
            assert 400 <= refused.status < 600  # noqa: PT017 (a refusal is one of two permitted results)
            assert fleet.snapshot is before
    for later_s in (0.5, 5.0, 20.0):
        now = _WALL_CLOCK + later_s
        fleet.tick(now, _POLICY)
        for pool in pools(fleet.snapshot, now).values():
            assert _is_count(pool.report.slots, pool.report.in_flight, pool.report.service_s)
            assert 0.0 <= pool.weight <= 1.0
        assert all(_is_count(row.requests_per_s) for row in demand(fleet.snapshot, now))
        assert all(_is_count(row.requests_per_s) for row in countries(fleet.snapshot, "eu-de", now))
        for row in spillover(fleet.snapshot, "eu-de", now):
            assert _is_count(row.waiting, row.headroom, row.granted, row.held)
        assert reporting_regions(fleet.snapshot, now) <= {"eu-de"}
        settled(fleet.snapshot, now, _POLICY, _WALL_CLOCK)
    for held in fleet.snapshot.agents.values():
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(held.report), type=type(held.report)) == held.report


def _is_count(*values: float) -> bool:
    return all(isfinite(value) and value >= 0 for value in values)


def _bodies(data: bytes) -> Iterator[bytes]:
    if data.startswith(b"{"):
        for line in data.split(b"\n"):
            try:
                yield msgspec.msgpack.encode(msgspec.json.decode(line))
            except (ValueError, RecursionError, OverflowError):
                continue
        return
    while len(data) > 2:
        end = 2 + int.from_bytes(data[:2], "big")
        yield data[2:end]
        data = data[end:]
