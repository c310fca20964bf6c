"""The collector pauses for a block and resumes after it, also after an error."""

from __future__ import annotations

import gc

import pytest

from adapters.garbage_collection import uncollected


def test_the_collector_pauses_and_never_visits_what_was_created_meanwhile() -> None:
    with uncollected():
        assert not gc.isenabled()
        created = [object() for _ in range(3)]
    assert gc.isenabled()
    assert not any(tracked is created for tracked in gc.get_objects())


def test_the_collector_resumes_after_an_error() -> None:
    def fail() -> None:
        with uncollected():
            raise ImportError("no such module")

    with pytest.raises(ImportError):
        fail()
    assert gc.isenabled()
