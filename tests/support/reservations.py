"""Reservations of an agent whose load is published, as attempts make and release them."""

from __future__ import annotations

from typing import Any, TypeVar

from penstock.pools.placement import Reservation
from regional_agent.shared_load.shared_load import SharedLoad

Reserved = TypeVar("Reserved", bound=Reservation[Any])


def reserve(load: SharedLoad, reservation: Reserved) -> Reserved:
    """Count a reservation on its endpoint."""
    reservation.take()
    load.publish()
    return reservation


def end_prefill(load: SharedLoad, reservation: Reservation[Any]) -> None:
    """Release the prefill of a reservation. A second call does nothing."""
    if reservation.end_prefill():
        load.publish()


def release(load: SharedLoad, reservation: Reservation[Any]) -> None:
    """Release the remaining load of a reservation. A second call does nothing."""
    if reservation.release():
        load.publish()
