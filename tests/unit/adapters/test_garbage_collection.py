"""The collector pauses for a block, and goes on after it whatever happens in it."""

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


def test_the_collector_goes_on_after_an_error() -> None:
    def fail() -> None:
        with uncollected():
            raise ImportError("no such module")

    with pytest.raises(ImportError):
        fail()
    assert gc.isenabled()
