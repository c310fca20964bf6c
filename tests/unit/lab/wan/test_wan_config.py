"""WAN configurations: defaults, round trips from the matrix, and a one-line error for every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.wan.matrix import MatrixError, RttMatrix
from lab.wan.wan_config import LinkPlan, WanConfigError, plan_links, read_config

MATRIX = RttMatrix({("a", "b"): 20.0}, "a test")


def plans(path: Path, text: str) -> list[LinkPlan]:
    path.write_text(text)
    return plan_links(read_config(path), MATRIX)


def test_takes_the_round_trip_from_the_matrix_or_the_link(tmp_path: Path) -> None:
    got = plans(
        tmp_path / "wan.json",
        '{"links": [{"name": "1", "from": "a", "to": "b", "target": "127.0.0.1:80"},'
        ' {"name": "2", "from": "x", "to": "y", "target": "[::1]:81", "port": 9000, "rtt_ms": 3}]}',
    )
    assert got == [
        LinkPlan("1", "a", "b", "127.0.0.1", 80, 0, 20.0),
        LinkPlan("2", "x", "y", "::1", 81, 9000, 3.0),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "wan.json: Input data was truncated; correct it"),
        ("{}", "required field `links`"),
        ('{"links": [{"name": "1"}]}', r"required field `from` - at `\$.links\[0\]`"),
        ('{"links": [], "lonks": 1}', "unknown field `lonks`"),
        ('{"links": [{"name": "1", "from": "a", "to": "b", "target": "x:1", "port": 70000}]}', "<= 65535"),
        ('{"links": [{"name": "1", "from": "a", "to": "b", "target": "x"}]}', "'x' is not host:port"),
        ('{"links": [{"name": "1", "from": "a", "to": "b", "target": "x:0"}]}', "'x:0' is not host:port"),
        (
            '{"links": [{"name": "1", "from": "a", "to": "b", "target": "x:1"},'
            ' {"name": "1", "from": "a", "to": "b", "target": "x:1"}]}',
            "link '1' occurs twice",
        ),
    ],
)
def test_errors_name_field_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(WanConfigError, match=message):
        plans(tmp_path / "wan.json", text)


def test_a_pair_that_the_matrix_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="from 'b' to 'a'"):
        plans(tmp_path / "w", '{"links": [{"name": "1", "from": "b", "to": "a", "target": "127.0.0.1:80"}]}')


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WanConfigError, match="No such file"):
        read_config(tmp_path / "absent.json")
