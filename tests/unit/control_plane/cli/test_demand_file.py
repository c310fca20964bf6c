"""Demand and fleets from files: valid files are read, errors name file, line and field."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from control_plane.cli.demand_file import BadDemand, read_access_logs, read_demand, read_fleet
from penstock.what_if.demand_outcomes import Capacity, DemandGroup
from regional_agent.telemetry.access_line import AccessLine

ROWS = [DemandGroup("eu-de", "t", "DE", "m", 2.5, "BE"), DemandGroup("", "t", None, "m", 1.0)]


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_csv_and_json_lines_are_equivalent(tmp_path: Path) -> None:
    table = "origin,tenant,country,model,requests_per_s,subdivision\neu-de,t,DE,m,2.5,BE\n,t,,m,1,\n"
    lines = (
        '{"origin":"eu-de","tenant":"t","country":"DE","model":"m","requests_per_s":2.5,"subdivision":"BE"}\n\n'
        '{"tenant":"t","model":"m","requests_per_s":1}\n'
    )
    assert read_demand(write(tmp_path / "demand.csv", table)) == ROWS
    assert read_demand(write(tmp_path / "demand.jsonl", lines)) == ROWS


def test_a_fleet_is_read(tmp_path: Path) -> None:
    text = "region,model,slots,service_s\neu-de,m,64,2.5\n"
    file = write(tmp_path / "fleet.csv", text)
    assert read_fleet(file) == [Capacity("eu-de", "m", 64, 2.5)]
    with pytest.raises(BadDemand, match=r"fleet.csv:3: eu-de has m already; write one row for each pool"):
        read_fleet(write(file, f"{text}eu-de,m,32,2\n"))
    text = "region,model,slots,service_s,slots_per_endpoint\neu-de,m,64,2.5,"
    assert read_fleet(write(file, f"{text}16\n")) == [Capacity("eu-de", "m", 64, 2.5, slots_per_endpoint=16.0)]
    for wrong in ("0", "nan", "1e300"):
        with pytest.raises(BadDemand, match=r"fleet.csv:2: a number is out of bounds"):
            read_fleet(write(file, f"{text}{wrong}\n"))


def test_a_csv_file_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "demand.csv", "\ufefftenant,model,requests_per_s\r\nt,m,1\r\n")
    assert read_demand(file) == [DemandGroup("", "t", None, "m", 1.0)]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("origin,tenant\n", "demand.csv: has no rows; write tenant, model, requests_per_s"),
        ("tenant,model,rate\nt,m,1\n", "demand.csv:1: no column rate; use tenant"),
        (
            "tenant,model,requests_per_s\nt,m,many\n",
            "demand.csv:2: Expected `float`, got `str` - at `$.requests_per_s`",
        ),
        ("tenant,model,requests_per_s\nt,m,1\nt,m,-1\n", "demand.csv:3: a number is out of bounds"),
        ("tenant,model,requests_per_s\nt,m,nan\n", "demand.csv:2: a number is out of bounds"),
        ("tenant,model,requests_per_s\nt,m,1e308\n", "demand.csv:2: a number is out of bounds"),
        ("tenant,model,requests_per_s,country\nt,m,1,Germany\n", "demand.csv:2: Expected `str` matching regex"),
        ("tenant,model,requests_per_s,country\nt,m,1,XX\n", "demand.csv:2: country: 'XX' is no country"),
        ("tenant,model,requests_per_s,country\nt,m,1,de\n", "demand.csv:2: Expected `str` matching regex"),
        ("tenant,model\nt,m\n", "demand.csv:2: Object missing required field `requests_per_s`"),
        ('tenant,model,requests_per_s\nt,"m,1\n', "demand.csv:2: not CSV"),
        ("tenant,model,requests_per_s\nt,m,1,2\n", "demand.csv:2: not as many fields"),
        ("tenant,model,requests_per_s\nt,m\n", "demand.csv:2: not as many fields"),
        ("tenant,model,requests_per_s,model\nt,m,1,m\n", "demand.csv:1: names model twice; keep one column of each"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, text: str, reported: str) -> None:
    with pytest.raises(BadDemand) as caught:
        read_demand(write(tmp_path / "demand.csv", text))
    assert reported in str(caught.value)


def test_invalid_json_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadDemand, match=r"deep\.jsonl:1: not JSON: "):
        read_demand(write(tmp_path / "deep.jsonl", "[" * 100_000))
    with pytest.raises(BadDemand, match=r"demand\.txt:1: not JSON: "):
        read_demand(write(tmp_path / "demand.txt", "tenant,model\n"))
    with pytest.raises(BadDemand, match="cannot be read: No such file"):
        read_demand(tmp_path / "nowhere.csv")


def logged(at: float, tenant: str, kind: str, country: str = "") -> bytes:
    line = AccessLine(at, "id", tenant, "m", "/v1/x", kind, "s", "e", "ok", 200, 1, 1, 1, 1.0)
    line.origin, line.country = "eu-de", country
    return msgspec.json.encode(line) + b"\n"


def test_access_logs_of_agents_are_read_as_demand(tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_bytes(logged(100.0, "t", "home", "DE") + logged(105.0, "t", "home", "DE") + logged(106.0, "", "home"))
    second.write_bytes(logged(110.0, "t", "forwarded", "DE") + logged(104.0, "u", "spillover"))
    assert read_access_logs([first, second]) == [
        DemandGroup("eu-de", "t", "DE", "m", 0.2),
        DemandGroup("eu-de", "u", None, "m", 0.1),
    ]
    with pytest.raises(BadDemand, match="no request of any tenant"):
        read_access_logs([write(tmp_path / "empty.log", "")])


def test_a_truncated_line_is_named_by_its_number(tmp_path: Path) -> None:
    line = '{"tenant":"t","model":"m","requests_per_s":1}\n'
    with pytest.raises(BadDemand, match=r"demand\.jsonl:3: not JSON: Input data was truncated"):
        read_demand(write(tmp_path / "demand.jsonl", line * 2 + line[:20]))
    (tmp_path / "demand.jsonl").write_bytes(line.encode() + b"\xff")
    with pytest.raises(BadDemand, match=r"demand\.jsonl: not UTF-8"):
        read_demand(tmp_path / "demand.jsonl")
