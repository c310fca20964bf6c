"""The lines of a batch that have a result: one bit a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class DoneLines:
    """A set of line numbers, from 1."""

    def __init__(self, lines: int) -> None:
        """Start with an empty set, for a file of so many lines."""
        self._lines = lines
        self._bits = bytearray(lines // 8 + 1)
        self.count = 0

    def __contains__(self, line: int) -> bool:
        return 0 < line <= self._lines and bool(self._bits[line >> 3] & (1 << (line & 7)))

    def add(self, line: int) -> bool:
        """Add a line; returns False if the set has the line, or the file has no such line."""
        if line in self or not 0 < line <= self._lines:
            return False
        self._bits[line >> 3] |= 1 << (line & 7)
        self.count += 1
        return True

    def add_ranges(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Add the lines of `ranges_of`."""
        for first, last in ranges:
            for line in range(first, last + 1):
                self.add(line)


def ranges_of(lines: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Lines as ranges of consecutive numbers, first and last included."""
    ranges: list[tuple[int, int]] = []
    for line in sorted(lines):
        if ranges and ranges[-1][1] == line - 1:
            ranges[-1] = (ranges[-1][0], line)
        else:
            ranges.append((line, line))
    return tuple(ranges)
