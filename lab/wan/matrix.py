"""Round trips between sites, read from a CSV file of measurements or estimates."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

COLUMNS = ["from", "to", "rtt_ms"]

SHIPPED_MATRIX = Path(__file__).with_name("rtt.csv")
"""Path of the default matrix."""

SHIPPED_SITES: Mapping[str, tuple[float, float]] = {
    "eu-de": (50.11, 8.68),
    "eu-es": (40.42, -3.70),
    "eu-gb": (51.51, -0.13),
    "us-east": (38.90, -77.04),
    "jp-tok": (35.68, 139.69),
}
"""Latitude and longitude (degrees) of Frankfurt, Madrid, London, Washington DC, Tokyo."""

SLOWEST_MS = 60_000.0
"""Maximum round trip (ms); a larger value is an error in the file."""


class MatrixError(Exception):
    """A matrix cannot be read or lacks a pair; the message names it in one line."""


class RttMatrix:
    """Round trips (ms) by pair of sites. The two directions of a pair may differ, as in measurements."""

    def __init__(self, rtt_ms: Mapping[tuple[str, str], float], source: str) -> None:
        """Args: `source` identifies the matrix in error messages, for example by its path."""
        self._rtt_ms = dict(rtt_ms)
        self._source = source

    def between(self, origin: str, target: str) -> float:
        """The round trip (ms) from `origin` to `target` and back.

        Raises:
            MatrixError: the matrix does not have the pair.
        """
        try:
            return self._rtt_ms[origin, target]
        except KeyError:
            raise MatrixError(
                f"{self._source}: no round trip from {origin!r} to {target!r}; add the line {origin},{target},<ms>"
            ) from None

    def pairs(self) -> dict[tuple[str, str], float]:
        """Every pair (from, to) with its round trip (ms)."""
        return dict(self._rtt_ms)


def read_matrix(path: Path) -> RttMatrix:
    """Read `from,to,rtt_ms` lines; lines that begin with `#` are comments.

    Raises:
        MatrixError: the file cannot be read, or a line is invalid.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise MatrixError(f"{path}: {problem}; give a CSV with {','.join(COLUMNS)}") from None
    numbered = [
        (number, [cell.strip() for cell in line.split(",")])
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not numbered or numbered[0][1] != COLUMNS:
        raise MatrixError(f"{path}: the header is missing; the first line must be {','.join(COLUMNS)}")
    rtt_ms: dict[tuple[str, str], float] = {}
    for number, cells in numbered[1:]:
        if len(cells) != len(COLUMNS):
            raise MatrixError(f"{path}, line {number}: {len(cells)} fields; write {','.join(COLUMNS)}")
        origin, target, text = cells
        if (origin, target) in rtt_ms:
            raise MatrixError(f"{path}, line {number}: {origin},{target} a second time; delete one")
        rtt_ms[origin, target] = _milliseconds(path, number, text)
    return RttMatrix(rtt_ms, str(path))


def _milliseconds(path: Path, number: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not (isfinite(value) and 0 <= value <= SLOWEST_MS):
        raise MatrixError(
            f"{path}, line {number}: rtt_ms: {text[:40]!r} is not a number from 0 to {SLOWEST_MS:g}; correct it"
        )
    return value
