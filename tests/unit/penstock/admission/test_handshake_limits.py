"""Networks that have completed a handshake keep their handshakes, however many others begin handshakes."""

from __future__ import annotations

import pytest

from penstock.admission import handshake_limits
from penstock.admission.connection_limits import CountedConnection
from penstock.admission.handshake_limits import LimitedHandshakes


def completed(limited: LimitedHandshakes, network: str) -> None:
    counted, evicted = limited.open(network, 0.0)
    assert evicted is None
    limited.close(counted, completed=True)


def test_a_known_network_keeps_its_handshake_while_others_hold_all_places() -> None:
    limited = LimitedHandshakes(16)
    completed(limited, "peer")
    held: dict[CountedConnection, str] = {}
    honest, _ = limited.open("peer", 1.0)
    for number in range(100):
        counted, evicted = limited.open(f"stranger-{number}", 2.0 + number)
        held[counted] = f"stranger-{number}"
        if evicted is not None:
            limited.close(evicted, completed=False)
            assert held.pop(evicted) == f"stranger-{number - 8}", "the handshake that began first"
    assert len(held) == 8
    again, evicted = limited.open("peer", 200.0)
    assert evicted is None
    limited.close(honest, completed=True)
    limited.close(again, completed=True)


def test_a_new_network_finds_a_place_among_known_ones() -> None:
    limited = LimitedHandshakes(16)
    for number in range(20):
        completed(limited, f"known-{number}")
    held = [limited.open(f"known-{number}", 1.0 + number) for number in range(20)]
    assert [evicted is not None for _, evicted in held] == [False] * 8 + [True] * 12
    assert limited.open("new", 30.0)[1] is None


def test_a_network_whose_handshake_failed_is_not_known() -> None:
    limited = LimitedHandshakes(4)
    counted, _ = limited.open("a", 0.0)
    limited.close(counted, completed=False)
    first, _ = limited.open("a", 1.0)
    limited.open("b", 2.0)
    assert limited.open("c", 3.0)[1] is first


def test_one_known_network_takes_its_own_places_only() -> None:
    limited = LimitedHandshakes(16)
    completed(limited, "a")
    completed(limited, "b")
    other, _ = limited.open("b", 1.0)
    own = [limited.open("a", 2.0 + number)[0] for number in range(2)]
    assert limited.open("a", 5.0)[1] is own[0]
    assert limited.open("b", 6.0)[1] is None
    assert limited.open("b", 7.0)[1] is other


def test_the_networks_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_limits, "MAX_KNOWN_NETWORKS", 2)
    limited = LimitedHandshakes(2)
    for network in ("a", "b", "a", "c"):
        completed(limited, network)
    known, _ = limited.open("a", 1.0)
    stranger, _ = limited.open("b", 2.0)
    assert limited.open("d", 3.0)[1] is stranger, "b was forgotten"
    assert limited.open("c", 4.0)[1] is known
