"""Signs stored values again at the end of an upgrade, so that all of them are bound to this fleet (ADR 19)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from adapters.store.config_store import ConfigStore, StoreError
from adapters.store.signed_store import SignedStore
from penstock.wire.fleet_binding import FleetBinding

POLL_S = 5.0
"""Interval (s) between two passes. A later pass signs what a process with a slower clock wrote meanwhile."""

_log = structlog.get_logger(__name__)


async def sign_again_when_due(
    store: ConfigStore,
    binding: FleetBinding,
    prefix: Callable[[], str],
    clock: Callable[[], float] = time.time,
) -> None:
    """Sign the values again that this process may write, from `bound_from` until the earlier form is rejected.

    Args:
        store: the fleet's store; no effect unless it is a SignedStore.
        binding: of this process.
        prefix: returns the prefix of the keys that this process signs at this moment.
        clock: Unix time, in seconds.
    """
    while isinstance(store, SignedStore) and binding.accepts_earlier_form:
        if not binding.signs_earlier_form:
            try:
                number = await store.sign_again(prefix())
            except StoreError as error:
                _log.warning("stored values not signed again", reason=str(error))
            else:
                if number:
                    _log.info("stored values signed again, for this fleet alone", number=number)
        await asyncio.sleep(POLL_S)
        binding.advance(clock())
