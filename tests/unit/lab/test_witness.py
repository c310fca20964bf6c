"""The residency witness: counts violations, accepts a truncated line, and imports only the standard library."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

import lab.witness
from lab.witness import Generated, Witness, WitnessError


def line(event: str, request_id: str | None, region: str = "eu-de", required: str | None = "eu-de,eu-es") -> str:
    record = {
        "event": event, "t": 1.5, "request_id": request_id, "region": region, "endpoint": "a", "required": required,
    }  # fmt: skip
    return json.dumps(record) + "\n"


def test_arrivals_are_checked_against_what_they_required(tmp_path: Path) -> None:
    (tmp_path / "eu-de-1.jsonl").write_text(line("arrived", "1") + line("arrived", "2", required="eu-es, eu-de"))
    (tmp_path / "eu-gb-2.jsonl").write_text(
        line("arrived", "3", "eu-gb") + line("arrived", "4", "eu-gb", None) + line("arrived", "5", "eu-gb", "")
    )
    findings = Witness(tmp_path).read()[0]
    assert findings.checked == 4
    assert [(seen.request_id, seen.region) for seen in findings.violations] == [
        ("3", "eu-gb"),
        ("5", "eu-gb"),
    ]


def test_only_arrivals_count_but_all_events_are_kept(tmp_path: Path) -> None:
    events = ["arrived", "started", "finished"]
    (tmp_path / "a.jsonl").write_text("".join(line(event, "1", "us-east") for event in events))
    findings = Witness(tmp_path).read()[0]
    assert (findings.checked, len(findings.violations)) == (1, 1)
    assert set(findings.started) == set(findings.finished) == set(findings.arrived) == {"1"}
    assert not findings.aborted


def test_duplicate_work_is_found_across_files(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line("started", "1") + line("started", "2") + line("aborted", "1"))
    (tmp_path / "b.jsonl").write_text(line("started", "1", "eu-es") + line("arrived", "2"))
    assert Witness(tmp_path).read()[0].started == {"1": 2, "2": 1}


def test_requests_without_an_id_are_checked_but_not_matched(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(line("arrived", None) + line("started", None) + line("started", None))
    findings = Witness(tmp_path).read()[0]
    assert findings.checked == 1
    assert not findings.started


def test_reading_continues_at_the_last_position(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "later")
    assert witness.read()[0].checked == 0
    (tmp_path / "later").mkdir()
    path = tmp_path / "later" / "a.jsonl"
    whole = line("arrived", "2", "eu-gb")
    path.write_text(line("arrived", "1") + whole[:20])
    findings, fresh = witness.read()
    assert [seen.request_id for seen in fresh] == ["1"]
    with path.open("a") as file:
        file.write(whole[20:])
    findings, fresh = witness.read()
    assert [seen.request_id for seen in fresh] == ["2"]
    assert (findings.checked, len(findings.violations)) == (2, 1)
    assert witness.read()[1] == []


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_truncated_last_line_is_ignored(tmp_path: Path, cut: int) -> None:
    (tmp_path / "a.jsonl").write_text(line("arrived", "1") + line("arrived", "2")[:cut])
    findings = Witness(tmp_path).read()[0]
    assert findings.checked == 1


@pytest.mark.parametrize(
    "broken",
    [
        "nonsense\n",
        "[]\n",
        '{"event": "vanished"}\n',
        '{"event": "arrived"}\n',
        line("arrived", "1").replace('"1"', "1"),
        line("arrived", "1").replace("1.5", "null"),
        line("arrived", "1").replace('"eu-de,eu-es"', '["eu-de"]'),
    ],
)
def test_an_invalid_line_in_the_middle_is_an_error(tmp_path: Path, broken: str) -> None:
    (tmp_path / "a.jsonl").write_text(line("arrived", "0") + broken + line("arrived", "2"))
    with pytest.raises(WitnessError, match=r"a\.jsonl:2: "):
        Witness(tmp_path).read()[0]


def test_it_imports_nothing_but_the_standard_library() -> None:
    tree = ast.parse(Path(lab.witness.__file__).read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported, "it does import something"
    assert imported <= set(sys.stdlib_module_names)


def test_the_tokens_of_generations_are_kept_by_request(tmp_path: Path) -> None:
    ended = [json.loads(line(event, "1")) for event in ("finished", "aborted")]
    lines = [{**record, "prompt_tokens": 5, "output_tokens": n} for n, record in enumerate(ended)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in lines) + line("started", "1"))
    generated = Witness(tmp_path).read()[0].generated
    assert generated == {"1": [Generated("finished", 5, 0), Generated("aborted", 5, 1)]}
    (tmp_path / "b.jsonl").write_text(json.dumps({**lines[0], "output_tokens": "many"}) + "\n")
    with pytest.raises(WitnessError, match="witness line"):
        Witness(tmp_path).read()
