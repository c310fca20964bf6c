"""The first repeated `custom_id` of a file, whatever part of the digests is in memory at a time."""

from __future__ import annotations

from random import Random

import pytest

from regional_agent.jobs.uploads import custom_ids
from regional_agent.jobs.uploads.custom_ids import CustomIds


def first_repeated(names: list[str]) -> tuple[int, int] | None:
    ids = CustomIds()
    try:
        for line, name in enumerate(names, 1):
            ids.add(name, line)
        return ids.first_repeated()
    finally:
        ids.close()


@pytest.mark.parametrize("max_known", [1, 7, 50_000])
def test_the_first_line_with_an_earlier_identifier_is_found(monkeypatch: pytest.MonkeyPatch, max_known: int) -> None:
    monkeypatch.setattr(custom_ids, "MAX_KNOWN", max_known)
    rng = Random(max_known)
    for count in (0, 1, 3000):
        names = [f"r{number}" for number in range(count)]
        assert first_repeated(names) is None
    for _ in range(5):
        lines = sorted(rng.sample(range(3000), 3))
        names = [f"r{number}" for number in range(3000)]
        names[lines[1]] = names[lines[2]] = names[lines[0]]
        assert first_repeated(names) == (lines[1] + 1, lines[0] + 1)
