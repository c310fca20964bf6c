"""The port that an agent listens on, and handing it to the agent that comes after without losing a connection.

Both listen on it (SO_REUSEPORT). The kernel deals new connections to both, and resets those that wait unaccepted in
a socket that is closed. So the old agent first has the kernel deal all of them to the new one (a socket filter on the
group, see socket(7), SO_ATTACH_REUSEPORT_CBPF), accepts what still waits for it, and only then closes.
"""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
from contextlib import suppress

SO_ATTACH_REUSEPORT_CBPF = 51
"""From Linux's asm-generic/socket.h; the socket module does not name it."""

SETTLE_S = 0.5
"""How long (s) handshakes that began with the old agent may take to end there; a round trip or two."""

_RETURN_CONSTANT = 0x06
"""BPF_RET | BPF_K."""

_SECOND = 1
"""Sockets of a group are numbered as they were bound; when the first closes, the last takes its place. So, of an old
agent and a new one, the new one is this."""


def open_port(host: str, port: int) -> socket.socket:
    """A socket bound to the port, which another process may bind too; port 0 chooses a free one.

    Raises:
        OSError: it cannot be bound.
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
    """Whether some process listens on the port now: one that whoever binds it next takes over from."""
    if port == 0:
        return False
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as alone:
        alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            alone.bind(address)
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def send_to_successor(listening: socket.socket) -> None:
    """Have new connections go to the socket that was bound after this one, where there is one.

    Elsewhere than on Linux nothing changes, and connections that wait while the socket closes are reset.
    """
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, _SECOND))
    program = struct.pack("HP", 1, ctypes.addressof(instruction))
    with suppress(OSError):
        listening.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)
