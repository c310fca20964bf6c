"""report.json has all documented fields, and the page shows the fields in one file without external resources."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from lab.demo.demo_report import build_report, write_report
from lab.demo.findings import seconds
from lab.demo.page.page import render_page
from lab.demo.records import Outcome, Run
from lab.demo.verdict import judge
from tests.support.story_run import REGIONS, change, report_of, report_setting, story_run

RUN = story_run()
VOID = {"meta", "input", "br"}
OPTIONAL_END = {"th"}


def test_the_report_has_all_documented_fields(tmp_path: Path) -> None:
    write_report(report_of(RUN), tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["passed"] is True
    assert set(report["requests"]) >= {"total", "ok", "failed", "refused"}
    assert set(report["residency"]) >= {"checked", "violations"}
    assert report["spillover"]["requests"] > 0
    assert set(report["failover"]) >= {"detected_s", "rerouted_s", "lost_not_started"}
    assert report["failback"]["seconds"] > 0
    assert report["control_plane_loss"]["failed_requests"] == 0
    assert report["images"]["ok"] == report["images"]["total"] == len(RUN.images)
    assert report["images"]["megapixel_steps_accounted"] == report["images"]["megapixel_steps"] > 0
    assert [(batch["distinct_custom_ids"], batch["extra_engine_runs"]) for batch in report["batches"]] == [
        (12, 0),
        (6, 2),
    ]
    assert set(report["latency"]) == set(REGIONS)
    for row in report["latency"].values():
        assert row["ttft_p50_ms"] <= row["ttft_p99_ms"] <= row["e2e_p99_ms"]
    assert [phase["name"] for phase in report["phases"]] == [
        "steady",
        "surge",
        "region_loss",
        "tenants",
        "control_loss",
    ]


def test_the_counts_of_a_report_add_up() -> None:
    report = report_of(RUN)
    requests = report["requests"]
    assert requests["total"] == requests["ok"] + requests["failed"] + requests["refused"] == len(RUN.served)
    assert sum(phase["requests"] for phase in report["phases"]) == len(RUN.served)
    assert sum(n for row in report["who_served_whom"].values() for n in row.values()) == requests["ok"]
    assert sum(row["requests"] for row in report["latency"].values()) == requests["ok"]


class Outline(HTMLParser):
    """Checks that elements nest, and collects all references of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.seen.append(name)
        self.addresses += [value or "" for key, value in attributes if key in ("src", "href", "data", "action")]
        if name not in VOID and name not in OPTIONAL_END:
            self.open.append(name)

    def handle_endtag(self, name: str) -> None:
        assert self.open.pop() == name


def test_the_page_is_one_file_without_external_resources() -> None:
    page = render_page(report_of(RUN), RUN)
    outline = Outline()
    outline.feed(page)
    assert outline.open == []
    assert outline.addresses == []
    assert "link" not in outline.seen
    assert not re.search(r"@import|url\(", page)


def test_the_page_has_every_module_that_its_modules_import() -> None:
    page = render_page(report_of(RUN), RUN)
    imports = json.loads(re.search(r'<script type="importmap">(.*?)</script>', page)[1])["imports"]
    for address in imports.values():
        module = b64decode(address.partition("base64,")[2]).decode()
        assert set(re.findall(r'from "(.*?)"', module)) <= imports.keys()


def shown(page: str) -> dict[str, Any]:
    """The data that the page draws."""
    return json.loads(re.search(r'<script type="application/json" id="report">(.*?)</script>', page)[1])


def test_the_page_plays_every_request_back() -> None:
    run = shown(render_page(report_of(RUN), RUN))["run"]
    assert len(run["requests"]) == len(RUN.served)
    assert {request["kind"] for request in run["requests"]} == {"home", "spillover", "failover", "failback", ""}
    assert run["lost"]["region"] == "eu-de"
    assert run["lost"]["killed_s"] < run["lost"]["ready_s"] < run["lost"]["ramped_s"]


def test_the_page_names_the_failed_checks() -> None:
    number = next(n for n, request in enumerate(RUN.served) if len(request.attempts) == 1)
    run = change(RUN, number, outcome=Outcome.REFUSED)
    page = render_page(report_of(run), run)
    assert "1 of 19 checks failed" in page
    assert "Every promise was kept" in render_page(report_of(RUN), RUN)
    checks = shown(page)["checks"]
    assert len(checks) == 19
    assert [check["name"] for check in checks if not check["passed"]] == ["nearest permitted region"]


def test_the_report_explains_what_was_not_answered() -> None:
    requests = report_of(RUN)["requests"]
    (lost,) = _reasons(RUN, "had reached eu-de when it was killed")
    assert requests["unanswered"] == [lost]
    assert int(lost.split()[0]) == requests["total"] - requests["ok"] > 0
    number = next(n for n, request in enumerate(RUN.served) if request.outcome is Outcome.OK)
    run = change(RUN, number, outcome=Outcome.REFUSED, detail="saturated")
    (reason,) = _reasons(run, "got a refusal (saturated)")
    assert reason.startswith(f"1 of {len(RUN.served)} chats")


def _reasons(run: Run, text: str) -> list[str]:
    return [reason for reason in report_of(run)["requests"]["unanswered"] if text in reason]


def test_a_duration_that_is_rounded_to_zero_has_no_sign() -> None:
    assert [seconds(value) for value in (-0.001, 0.0, -1.0, None)] == ["0.00 s", "0.00 s", "-1.00 s", "never"]


def test_external_text_is_escaped() -> None:
    evil = "</script><script>alert(1)</script>"
    run = change(RUN, 3, outcome=Outcome.FAILED, detail=evil)
    report = build_report(run, judge(run), report_setting(workload=evil, environment={evil: evil}))
    page = render_page(report, run)
    assert "<script>alert" not in page
    assert page.count("</script>") == 3
    assert shown(page)["workload"] == evil
