"""Matrices of round trips: exact values, exact errors, and a shipped matrix that agrees with distances."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from lab.wan.matrix import COLUMNS, SHIPPED_MATRIX, SHIPPED_SITES, MatrixError, read_matrix
from penstock.policy.geography import estimated_rtt_ms, great_circle_km
from tests.support.paths import SHARED_DATA

MEASURED = SHARED_DATA / "network/region-rtt-ms.csv"


def estimate_matrix(sites: Mapping[str, tuple[float, float]]) -> str:
    """The CSV of a matrix estimated from latitude and longitude (degrees), see `penstock.policy.geography`."""
    lines = [
        "# Round trips (ms) computed from great-circle distances by penstock.policy.geography.estimated_rtt_ms:",
        "# stretched fibre there and back plus 1 ms of gear. Estimates, not measurements.",
        ",".join(COLUMNS),
    ]
    for origin, here in sites.items():
        for target, there in sites.items():
            lines.append(f"{origin},{target},{estimated_rtt_ms(great_circle_km(*here, *there)):.1f}")
    return "\n".join(lines) + "\n"


def test_the_shipped_matrix_is_computed_from_geography() -> None:
    assert SHIPPED_MATRIX.read_text() == estimate_matrix(SHIPPED_SITES)
    assert SHIPPED_MATRIX.read_text().startswith("# Round trips (ms) computed")
    matrix = read_matrix(SHIPPED_MATRIX)
    assert len(matrix.pairs()) == 25
    assert matrix.between("eu-de", "eu-gb") < matrix.between("eu-de", "eu-es") < matrix.between("eu-de", "us-east")


def test_comments_and_directions(tmp_path: Path) -> None:
    path = tmp_path / "rtt.csv"
    path.write_text("# measured by hand\nfrom,to,rtt_ms\na,b,10\n  # and back\n\nb, a, 12.5\n")
    matrix = read_matrix(path)
    assert (matrix.between("a", "b"), matrix.between("b", "a")) == (10.0, 12.5)


@pytest.mark.skipif(not MEASURED.is_file(), reason="the measured matrix is not at ../shared/data/network")
def test_reads_the_measured_matrix() -> None:
    matrix = read_matrix(MEASURED)
    assert matrix.between("eu-de", "jp-tok") == 237.0
    assert set(matrix.pairs()) >= {(a, b) for a in SHIPPED_SITES for b in SHIPPED_SITES}


def test_a_missing_pair_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rtt.csv"
    path.write_text("from,to,rtt_ms\na,b,10\n")
    with pytest.raises(MatrixError, match=r"rtt.csv: no round trip from 'b' to 'a'; add the line b,a,<ms>"):
        read_matrix(path).between("b", "a")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the header is missing"),
        (b"a,b,10\n", "the header is missing"),
        (b"from,to,rtt_ms\na,b\n", "line 2: 2 fields"),
        (b"#\nfrom,to,rtt_ms\na,b,far\n", "line 3: rtt_ms: 'far' is not a number"),
        (b"from,to,rtt_ms\na,b,-1\n", "line 2: rtt_ms: '-1'"),
        (b"from,to,rtt_ms\na,b,nan\n", "line 2: rtt_ms: 'nan'"),
        (b"from,to,rtt_ms\na,b,1e9\n", "line 2: rtt_ms: '1e9'"),
        (b"from,to,rtt_ms\na,b,1\na,b,2\n", "line 3: a,b a second time"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_errors_name_field_and_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rtt.csv"
    path.write_bytes(content)
    with pytest.raises(MatrixError, match=message):
        read_matrix(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="No such file"):
        read_matrix(tmp_path / "absent.csv")
