"""The limit of client connections leaves enough file descriptors for the agent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regional_agent.config.file_descriptors import MIN_OWN, shares_of


@given(st.integers(MIN_OWN + 32, 1 << 30))
def test_shares_never_exceed_the_limit(descriptors: int) -> None:
    shares = shares_of(descriptors)
    assert min(shares) >= 1
    assert 2 * shares.admin + 2.125 * (shares.peer + shares.traffic) + MIN_OWN <= descriptors


def test_clients_get_most_descriptors() -> None:
    assert shares_of(1024).traffic > 250
    assert shares_of(65_536).traffic > 18_000
    assert shares_of(1 << 20).traffic > 300_000
