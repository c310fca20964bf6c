from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.log_chains.access_log_chain import ChainWriter
from penstock.log_chains.residency_report import ReportBuilder, ResidencyReport
from penstock.policy.residency import residency_class

EEA = "eu-de+eu-es"
HOME = {"at": 100.0, "request_id": "r", "tenant": "acme", "kind": "home", "server": "eu-es", "outcome": "ok"} | {
    "origin": "eu-es",
    "residency_class": EEA,
    "rejected": [{"what": "us-east", "reason": "residency_not_allowed"}],
    "ttft_ms": 1.0,
}
FAILED_OVER = HOME | {"kind": "failover", "server": "eu-de"}
SERVED: dict[str, Any] = HOME | {"kind": "forwarded", "server": "eu-de", "rejected": []}


def log(*lines: dict[str, Any], agent: str = "eu-es/a", share: float = 1.0) -> list[bytes]:
    block = msgspec.json.Encoder().encode_lines(lines)
    return ChainWriter(f"{agent}/1", share).chained(block, 1)[0].splitlines(keepends=True)


def report(*files: list[bytes], **period: Any) -> ResidencyReport:
    builder = ReportBuilder(**period)
    for number, lines in enumerate(files):
        builder.add_file(f"file-{number}", lines)
    return builder.report()


def test_origin_and_server_are_matched_and_counted_once() -> None:
    result = report(log(HOME, FAILED_OVER), log(SERVED, agent="eu-de/a"))
    assert (result.consistent, result.requests, result.governed) == (True, 2, 2)
    assert [(group.tenant, group.residency_class, group.region, group.requests) for group in result.processed] == [
        ("acme", EEA, "eu-de", 1),
        ("acme", EEA, "eu-es", 1),
    ]


def test_a_forwarded_request_without_a_line_of_its_server() -> None:
    result = report(log(FAILED_OVER, FAILED_OVER), log(SERVED, agent="eu-de/a"))
    assert [(finding.file, finding.line, finding.request_id) for finding in result.incomplete] == [("file-0", 2, "r")]
    assert not result.consistent


@pytest.mark.parametrize(
    "line",
    [
        HOME | {"kind": "failover", "server": "us-east", "ttft_ms": None},
        SERVED | {"server": "us-east"},
        SERVED | {"origin": "us-east"},
        HOME | {"tried": {"us-east": "saturated"}},
        HOME | {"server": "none", "outcome": "refused", "tried": {"us-east": "saturated"}},
    ],
)
def test_a_request_outside_its_class(line: dict[str, Any]) -> None:
    result = report(log(HOME, line))
    (violation,) = result.violations
    assert (violation.file, violation.line, violation.tenant) == ("file-0", 2, "acme")
    assert "us-east" in violation.problem
    assert not result.consistent


def test_a_class_that_is_named_for_its_digest_needs_its_regions() -> None:
    regions = frozenset(f"region-with-a-long-name-{n}" for n in range(4)) | {"eu-es"}
    long = HOME | {"residency_class": residency_class(regions).name}
    assert report(log(long | {"permitted": sorted(regions)})).consistent
    for line in (long, long | {"permitted": ["eu-es"]}, HOME | {"residency_class": ""}):
        assert [finding.line for finding in report(log(line)).incomplete] == [1]


def test_a_sampled_log_is_no_proof() -> None:
    result = report(log(HOME, HOME, share=0.5))
    assert not result.consistent
    assert [fault.problem for fault in result.faults] == [
        "sampled: access_log_share is 0.5; a sampled log is no proof",
    ]


def test_period_and_tenant() -> None:
    lines = log(*(HOME | {"at": float(at), "tenant": tenant} for at in range(10) for tenant in ("acme", "other")))
    assert report(lines, since=2.0, until=4.0, tenant="acme").requests == 3
    assert report(lines[4:], since=4.0).consistent, "only records before the period are missing"
    assert not report(lines[4:], since=2.0).consistent
    assert report(lines[:4], lines[12:], since=7.0).consistent
    assert not report(lines[:4], lines[12:], since=5.0).consistent


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff" * 100, b"[" * 10_000, b'{"at":1}' + log(HOME)[0][-77:]])
def test_what_is_no_line_of_a_log_is_reported(text: bytes) -> None:
    result = report([text + b"\n"])
    assert ("file-0", 1) in [(fault.file, fault.line) for fault in result.faults]
    assert not report([]).consistent, "no records prove nothing"
