"""Signs the stored values again at the end of an upgrade, so that all of them are bound to this fleet (ADR 19)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from adapters.store.config_store import StoreError
from adapters.store.signed_store import SignedStore
from control_plane.leadership.leader_elector import LeaderElector
from penstock.wire.fleet_binding import FleetBinding

POLL_S = 5.0
"""Interval (s) between two passes. A later pass signs what a process with a slower clock wrote meanwhile."""

_log = structlog.get_logger(__name__)


async def sign_again_when_due(
    store: SignedStore, binding: FleetBinding, elector: LeaderElector, clock: Callable[[], float] = time.time
) -> None:
    """Sign the values again while this control plane leads, from `bound_from` until the earlier form is rejected.

    Args:
        store: the fleet's store; not one that counts or bounds its calls.
        binding: of this process.
        elector: knows whether this control plane leads.
        clock: Unix time, in seconds.
    """
    while binding.accepts_earlier_form:
        if not binding.signs_earlier_form and elector.epoch is not None:
            try:
                number = await store.sign_again()
            except StoreError as error:
                _log.warning("stored values not signed again", reason=str(error))
            else:
                if number:
                    _log.info("stored values signed again, for this fleet alone", number=number)
        await asyncio.sleep(POLL_S)
        binding.advance(clock())
