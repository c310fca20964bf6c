"""Checks at the start that a gateway connects the name of this agent to this agent, and to no other one.

A TCP balancer that does not route by the name in the TLS handshake connects a probe of one agent to another one, whose
keys differ, so that other regions could not tell which agent is reachable.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress

import structlog

from penstock.wire.identity import BadIdentity, SpiffeId
from penstock.wire.peer_keys import Keyring
from regional_agent.upstream.address import Address

TRIES = 8
"""Number of connections of the check: a balancer with one other agent behind it misses the other one in 1 of 256."""

CONNECT_TIMEOUT_S = 1.0
"""Time limit (s) of a connection and its handshake."""

log = structlog.get_logger()


async def other_process_behind(address: Address, tls: Callable[[], ssl.SSLContext], keyring: Keyring) -> str:
    """Return the SPIFFE ID of another process that answers at the address of this agent; empty if there is none.

    The gateway may be down, or not reachable from here: the check ends with the first connection that fails.

    Args:
        tls: returns the TLS context for connections to agents.
        keyring: the identity of this agent.
    """
    for _ in range(TRIES):
        try:
            found = await _process_at(address, tls(), keyring)
        except (OSError, TimeoutError) as error:
            log.warning("gateway not checked", address=str(address), reason=str(error) or "it does not answer in time")
            return ""
        except BadIdentity as error:
            return str(error)
        if found != keyring.identity.id:
            return str(found)
    return ""


async def _process_at(address: Address, tls: ssl.SSLContext, keyring: Keyring) -> SpiffeId:
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        name = address.server_name or address.host
        _, writer = await asyncio.open_connection(address.host, address.port, ssl=tls, server_hostname=name)
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return keyring.identity.trust.verify(certificate, time.time()).id
    finally:
        writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await writer.wait_closed()
