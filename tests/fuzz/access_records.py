"""Reads any file as an agent's access log (`penstock residency report`).

Property: the report is made; a file with a line that has no chain, or that is given twice, proves nothing.
"""

from __future__ import annotations

from penstock.log_chains.access_log_chain import chained_line
from penstock.log_chains.residency_report import ReportBuilder

WORDS = (
    *(b'"at":', b'"kind":"forwarded"', b'"permitted":["', b'"tried":{"'),
    *(b'"epoch":"', b'"seq":', b',"chain":"', b'"}\n'),
)


def check(data: bytes) -> None:
    """Raises AssertionError if the property does not hold."""
    lines = data.splitlines(keepends=True)
    once, twice = ReportBuilder(), ReportBuilder()
    once.add_file("log", lines)
    for file in ("log", "copy"):
        twice.add_file(file, lines)
    report = once.report()
    assert not report.proven or all(chained_line(line.rstrip(b"\n")) for line in lines)
    assert not twice.report().proven
