"""The shared state of one listener's connections: settings, write batch, drain flag, and memory of bodies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.http.header_rules import NOT_FOR_ENGINES, TO_ENGINE, HeaderFilter
from regional_agent.http.disconnect_watcher import DisconnectWatcher
from regional_agent.http.kept_bodies import KeptBodies
from regional_agent.http.limits import Limits
from regional_agent.http.write_batcher import WriteBatcher


class ListenerState:
    """The state that all connections of one listener share."""

    def __init__(self, limits: Limits, trusts: Callable[[str], bool], location_header: bytes, *, secure: bool) -> None:
        """Create the state of a listener that accepts connections.

        Args:
            trusts: whether an address is a trusted proxy.
            location_header: name, in lower case, of the header in which trusted proxies send a client's location. It
                is never sent upstream. Empty if no such header is configured.
            secure: whether the listener uses TLS.
        """
        self.limits = limits
        self.trusts = trusts
        self.location_header = location_header
        self.to_upstream = HeaderFilter(NOT_FOR_ENGINES | {location_header}) if location_header else TO_ENGINE
        """The request headers that are sent upstream."""
        self.secure = secure
        self.clock = asyncio.get_running_loop().time
        self.bodies = KeptBodies(limits)
        self.disconnects = DisconnectWatcher()
        self.batcher = WriteBatcher()
        self.draining = False
        self.draining_since = 0.0
