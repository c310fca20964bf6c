"""Reports are taken in when they are the fleet's and make sense; any other changes nothing."""

from __future__ import annotations

import msgspec
import pytest

from control_plane.metrics import ControlPlaneMetrics
from control_plane.planning.fleet_snapshot import FleetSnapshot
from control_plane.planning.report_intake import ReportIntake, ReportReceipt, ReportRefused
from penstock.fleet.snapshot import Snapshot
from penstock.policy.policy import Policy
from penstock.wire.signing import FleetKey, Purpose
from tests.support import planet
from tests.support.reports import KEY, offered, packed, report


class Desk:
    """An intake with what stands around it."""

    def __init__(self, policy: Policy | None = None, receipt: ReportReceipt | None = None) -> None:
        self.fleet = FleetSnapshot()
        self.metrics = ControlPlaneMetrics()
        self.receipt = receipt or ReportReceipt(True, "http://leader")
        self.intake = ReportIntake(
            KEY,
            self.fleet,
            policy=lambda: policy,
            leading=lambda: self.receipt,
            metrics=self.metrics,
            clock=lambda: 100.0,
        )

    def counted(self, region: str, outcome: str) -> float | None:
        return self.metrics.registry.get_sample_value("penstock_reports_total", {"region": region, "outcome": outcome})


@pytest.fixture
def desk() -> Desk:
    return Desk(planet.policy())


def send(desk: Desk, body: bytes, signature: str) -> ReportReceipt:
    return desk.intake.receive(body, signature)


def signed(body: bytes) -> str:
    return KEY.sign(Purpose.REPORT, body)


def refused(desk: Desk, body: bytes, signature: str) -> int:
    with pytest.raises(ReportRefused) as caught:
        send(desk, body, signature)
    return caught.value.status


def test_a_signed_report_is_taken_in(desk: Desk) -> None:
    body, headers = packed(report("eu-de"))
    assert send(desk, body, headers["x-penstock-signature"]) == ReportReceipt(True, "http://leader")
    assert desk.fleet.snapshot.agents["eu-de", "one"].received_at == 100.0
    assert desk.counted("eu-de", "accepted") == 1


def test_one_who_does_not_lead_takes_it_in_and_says_who_does() -> None:
    desk = Desk(planet.policy(), ReportReceipt(False, "http://leader"))
    body, headers = packed(report("eu-de"))
    assert send(desk, body, headers["x-penstock-signature"]) == ReportReceipt(False, "http://leader")
    assert desk.fleet.snapshot.agents
    assert desk.counted("eu-de", "not_leader") == 1


@pytest.mark.parametrize(
    "signature",
    [
        "",
        "0" * 64,
        FleetKey(b"another fleet's key, of whatever length").sign(Purpose.REPORT, packed(report("eu-de"))[0]),
        KEY.sign(Purpose.PROBE, packed(report("eu-de"))[0]),
        "ä" * 100_000,
    ],
    ids=["none", "wrong", "another-fleet", "another-purpose", "long"],
)
def test_what_is_not_signed_for_this_is_refused(desk: Desk, signature: str) -> None:
    assert refused(desk, packed(report("eu-de"))[0], signature) == 401
    assert desk.fleet.snapshot == Snapshot()
    assert desk.counted("other", "bad_signature") == 1


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"\xc1", msgspec.msgpack.encode({"region": 1}), b"\x91" * 100_000], ids=range(5)
)
def test_what_is_no_report_is_refused(desk: Desk, body: bytes) -> None:
    assert refused(desk, body, signed(body)) == 400
    assert desk.fleet.snapshot == Snapshot()
    assert desk.counted("other", "malformed") == 1


def test_a_changed_report_is_refused(desk: Desk) -> None:
    body, headers = packed(report("eu-de"))
    assert refused(desk, body.replace(b"eu-de", b"eu-es"), headers["x-penstock-signature"]) == 401


def test_a_replayed_report_is_refused(desk: Desk) -> None:
    body, headers = packed(report("eu-de"))
    send(desk, body, headers["x-penstock-signature"])
    assert refused(desk, body, headers["x-penstock-signature"]) == 409
    assert desk.counted("eu-de", "stale") == 1


def test_a_region_that_policy_has_not_is_refused_and_makes_no_series(desk: Desk) -> None:
    body, _ = packed(report("atlantis"))
    assert refused(desk, body, signed(body)) == 422
    assert desk.counted("other", "unknown_region") == 1
    assert desk.counted("atlantis", "unknown_region") is None


def test_a_poisoned_report_is_refused(desk: Desk) -> None:
    body, _ = packed(report("eu-de", offered(1.0, "eu-de"), slots=10**9))
    assert refused(desk, body, signed(body)) == 422
    assert desk.fleet.snapshot == Snapshot()


def test_without_a_policy_no_region_is_known() -> None:
    body, _ = packed(report("eu-de"))
    assert refused(Desk(None), body, signed(body)) == 503
