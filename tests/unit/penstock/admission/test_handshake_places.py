"""Networks that have completed a handshake keep their places, however many others begin handshakes."""

from __future__ import annotations

import pytest

from penstock.admission import handshake_places
from penstock.admission.connection_places import Place
from penstock.admission.handshake_places import HandshakePlaces


def completed(places: HandshakePlaces, network: str) -> None:
    place, evicted = places.open(network, 0.0)
    assert evicted is None
    places.close(place, completed=True)


def test_a_known_network_keeps_its_handshake_while_others_hold_all_places() -> None:
    places = HandshakePlaces(16)
    completed(places, "peer")
    held: dict[Place, str] = {}
    honest, _ = places.open("peer", 1.0)
    for number in range(100):
        place, evicted = places.open(f"stranger-{number}", 2.0 + number)
        held[place] = f"stranger-{number}"
        if evicted is not None:
            places.close(evicted, completed=False)
            assert held.pop(evicted) == f"stranger-{number - 8}", "the handshake that began first"
    assert len(held) == 8
    again, evicted = places.open("peer", 200.0)
    assert evicted is None
    places.close(honest, completed=True)
    places.close(again, completed=True)


def test_a_new_network_finds_a_place_among_known_ones() -> None:
    places = HandshakePlaces(16)
    for number in range(20):
        completed(places, f"known-{number}")
    held = [places.open(f"known-{number}", 1.0 + number) for number in range(20)]
    assert [evicted is not None for _, evicted in held] == [False] * 8 + [True] * 12
    assert places.open("new", 30.0)[1] is None


def test_a_network_whose_handshake_failed_is_not_known() -> None:
    places = HandshakePlaces(4)
    place, _ = places.open("a", 0.0)
    places.close(place, completed=False)
    first, _ = places.open("a", 1.0)
    places.open("b", 2.0)
    assert places.open("c", 3.0)[1] is first


def test_one_known_network_takes_its_own_places_only() -> None:
    places = HandshakePlaces(16)
    completed(places, "a")
    completed(places, "b")
    other, _ = places.open("b", 1.0)
    own = [places.open("a", 2.0 + number)[0] for number in range(2)]
    assert places.open("a", 5.0)[1] is own[0]
    assert places.open("b", 6.0)[1] is None
    assert places.open("b", 7.0)[1] is other


def test_the_networks_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake_places, "MAX_KNOWN_NETWORKS", 2)
    places = HandshakePlaces(2)
    for network in ("a", "b", "a", "c"):
        completed(places, network)
    known, _ = places.open("a", 1.0)
    stranger, _ = places.open("b", 2.0)
    assert places.open("d", 3.0)[1] is stranger, "b was forgotten"
    assert places.open("c", 4.0)[1] is known
