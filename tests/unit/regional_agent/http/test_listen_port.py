from __future__ import annotations

import socket
import sys

import pytest

from regional_agent.http.listen_port import is_served, open_port, steer_to_successor

CONNECTIONS = 40


def accepted(listening: socket.socket) -> int:
    """The number of connections in the accept queue of a socket."""
    listening.setblocking(False)
    count = 0
    while True:
        try:
            listening.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def listen(port: int = 0) -> socket.socket:
    listening = open_port("127.0.0.1", port)
    listening.listen(CONNECTIONS)
    return listening


def test_a_port_is_served_while_somebody_listens_on_it() -> None:
    first = listen()
    port = first.getsockname()[1]
    assert is_served("127.0.0.1", port)
    with socket.create_connection(("127.0.0.1", port)):
        second = listen(port)
        first.close()
        assert is_served("127.0.0.1", port)
        second.close()
    assert not is_served("127.0.0.1", port), "closed connections that linger serve nobody"
    assert not is_served("127.0.0.1", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel deals connections out in its own way elsewhere")
def test_a_successor_gets_every_new_connection_and_can_have_one_itself() -> None:
    oldest = listen()
    port = oldest.getsockname()[1]
    old = oldest
    for _ in range(2):
        new = listen(port)
        steer_to_successor(old)
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
        assert (accepted(old), accepted(new)) == (0, CONNECTIONS)
        for client in clients:
            client.close()
        old.close()
        old = new
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CONNECTIONS)]
    assert accepted(old) == CONNECTIONS, "alone, it gets all of them, whatever its predecessors asked for"
    for client in clients:
        client.close()
    old.close()


def test_without_a_successor_nothing_changes() -> None:
    alone = listen()
    steer_to_successor(alone)
    with socket.create_connection(alone.getsockname()):
        assert accepted(alone) == 1
    alone.close()
