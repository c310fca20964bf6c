"""Authentic and plausible reports are accepted; other reports change nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec
import pytest
from msgspec.structs import replace

from control_plane.metrics import ControlPlaneMetrics
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.report_intake import ReportIntake, ReportReceipt, ReportRefused
from penstock.fleet.snapshot import Snapshot
from penstock.policy.policy import Policy
from penstock.wire.peer_keys import Keyring, Purpose
from penstock.wire.signed_report import DIGEST_HEADER, SIGNATURE_HEADER, report_headers
from tests.support import planet
from tests.support.identities import agent_keyring, control_plane_keyring
from tests.support.reports import offered, packed, report

NOW = time.time()


class Desk:
    """An intake with its collaborators."""

    def __init__(self, policy: Policy | None = None, receipt: ReportReceipt | None = None) -> None:
        self.fleet = FleetSnapshot()
        self.metrics = ControlPlaneMetrics()
        self.receipt = receipt or ReportReceipt(True, "http://leader")
        self.intake = ReportIntake(
            control_plane_keyring(),
            self.fleet,
            policy=lambda: policy,
            leading=lambda: self.receipt,
            metrics=self.metrics,
            clock=lambda: NOW,
        )

    def counted(self, region: str, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value("penstock_reports_total", {"region": region, "outcome": outcome})


@pytest.fixture
def desk() -> Desk:
    return Desk(planet.policy())


def send(desk: Desk, body: bytes, headers: Mapping[str, str]) -> ReportReceipt:
    return desk.intake.receive(desk.intake.accept_head(headers), body)


def signed(body: bytes, purpose: Purpose = Purpose.REPORT, sender: Keyring | None = None) -> dict[str, str]:
    sender = sender or agent_keyring("eu-de", "one")
    peer_keys = sender.keys_with(control_plane_keyring().identity.peer.certificate, NOW)
    headers = report_headers(peer_keys, sender.identity.peer.certificate, body)
    return headers | {SIGNATURE_HEADER: peer_keys.sign(purpose, headers[DIGEST_HEADER].encode())}


def refused(desk: Desk, body: bytes, headers: Mapping[str, str]) -> int:
    with pytest.raises(ReportRefused) as caught:
        send(desk, body, headers)
    return caught.value.status


def test_a_signed_report_is_accepted(desk: Desk) -> None:
    body, headers = packed(report("eu-de"))
    assert send(desk, body, headers) == ReportReceipt(True, "http://leader")
    assert desk.fleet.snapshot.agents["eu-de", "one"].received_at == NOW
    assert desk.counted("eu-de", "accepted") == 1


def test_a_follower_accepts_the_report_and_names_the_leader() -> None:
    desk = Desk(planet.policy(), ReportReceipt(False, "http://leader"))
    body, headers = packed(report("eu-de"))
    assert send(desk, body, headers) == ReportReceipt(False, "http://leader")
    assert desk.fleet.snapshot.agents
    assert desk.counted("eu-de", "not_leader") == 1


def test_an_agent_asks_for_the_keys_of_an_issuer(desk: Desk) -> None:
    asked: list[tuple[str, ...]] = []
    desk.intake.on_issuers_asked = asked.append
    send(desk, *packed(report("eu-de")))
    send(desk, *packed(replace(report("eu-de"), seq=2, issuers_asked=("corp",))))
    assert asked == [("corp",)]


BODY, HEADERS = packed(report("eu-de"))


@pytest.mark.parametrize(
    "headers",
    [
        {"x-penstock-signature": ""},
        {"x-penstock-signature": "0" * 64},
        {"x-penstock-signature": "ä" * 100_000},
        {"content-digest": ""},
        {"content-digest": "ä" * 100_000},
        {"content-digest": packed(report("eu-es"))[1]["content-digest"]},
        {"x-penstock-certificate": ""},
        {"x-penstock-certificate": "ä" * 100_000},
        packed(report("eu-de"), fleet=1)[1],
        packed(report("eu-de"), "cp-2")[1],
        signed(BODY, Purpose.PROBE),
    ],
    ids=range(11),
)
def test_a_report_signed_for_another_receiver_is_refused(desk: Desk, headers: dict[str, str]) -> None:
    assert refused(desk, BODY, {**HEADERS, **headers}) == 401
    assert desk.fleet.snapshot == Snapshot()
    assert desk.counted("other", "bad_signature") == 1


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"\xc1", msgspec.msgpack.encode({"region": 1}), b"\x91" * 100_000], ids=range(5)
)
def test_an_undecodable_report_is_refused(desk: Desk, body: bytes) -> None:
    assert refused(desk, body, signed(body)) == 400
    assert desk.fleet.snapshot == Snapshot()
    assert desk.counted("other", "malformed") == 1


@pytest.mark.parametrize(
    ("sender", "status"),
    [
        (agent_keyring("eu-es", "one"), 403),
        (agent_keyring("eu-de", "two"), 403),
        (control_plane_keyring("cp-2"), 401),
    ],
)
def test_an_agent_reports_for_itself_only(desk: Desk, sender: Keyring, status: int) -> None:
    assert refused(desk, BODY, signed(BODY, sender=sender)) == status
    assert desk.fleet.snapshot == Snapshot()


def test_a_changed_report_is_refused(desk: Desk) -> None:
    body, headers = packed(report("eu-de"))
    assert refused(desk, body.replace(b"eu-de", b"eu-es"), headers) == 401


def test_a_replayed_report_is_refused(desk: Desk) -> None:
    body, headers = packed(report("eu-de"))
    send(desk, body, headers)
    assert refused(desk, body, headers) == 409
    assert desk.counted("eu-de", "stale") == 1


def test_an_unknown_region_is_refused_and_creates_no_series(desk: Desk) -> None:
    assert refused(desk, *packed(report("atlantis"))) == 422
    assert desk.counted("other", "unknown_region") == 1
    assert desk.counted("atlantis", "unknown_region") is None


def test_a_report_with_impossible_numbers_is_refused(desk: Desk) -> None:
    body, _ = packed(report("eu-de", offered(1.0, "eu-de"), slots=10**9 + 1))
    assert refused(desk, body, signed(body)) == 422
    assert desk.fleet.snapshot == Snapshot()


def test_without_a_policy_no_region_is_known() -> None:
    body, _ = packed(report("eu-de"))
    assert refused(Desk(None), body, signed(body)) == 503
