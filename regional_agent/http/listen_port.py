"""Binding the listening port, and handing it over to a successor process without losing a connection.

Both processes listen on the port (SO_REUSEPORT). The kernel distributes new connections over both sockets, and resets
the connections in the accept queue of a socket that is closed. The old process therefore first attaches a filter to the
socket group that selects the successor's socket (socket(7), SO_ATTACH_REUSEPORT_CBPF), accepts the connections that are
still queued, and then closes its socket.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from contextlib import suppress

SO_ATTACH_REUSEPORT_CBPF = 51
"""From Linux's asm-generic/socket.h; Python's socket module has no constant for this option."""

HANDSHAKE_S = 0.5
"""Time (s) for TCP handshakes that began at the old process to complete; they take a round trip or two."""

_RETURN_CONSTANT = 0x06
"""BPF_RET | BPF_K."""

_SECOND = 1
"""Index of the successor's socket. Sockets of a group are numbered in the order of bind(2); when the first socket
closes, the last socket takes its number."""


def open_port(host: str, port: int) -> socket.socket:
    """Return a socket bound to the port, which other processes may bind too; port 0 selects a free port.

    Raises:
        OSError: the port cannot be bound.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def is_served(host: str, port: int) -> bool:
    """Whether another process listens on the port, which this process would then take over."""
    if port == 0:
        return False
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind(address)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def steer_to_successor(listening: socket.socket) -> None:
    """Direct new connections to the socket that was bound after `listening`, if such a socket exists.

    On platforms other than Linux the function has no effect, and connections that are queued when the socket closes are
    reset.
    """
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, _SECOND))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
