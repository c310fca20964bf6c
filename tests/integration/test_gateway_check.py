"""The check of an agent at its start: which process answers at its own address behind a gateway."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from adapters.files.identity_files import CERTIFICATE, PRIVATE_KEY
from regional_agent.peers.gateway_check import other_process_behind
from regional_agent.upstream.address import Address
from tests.support.identities import agent_id, agent_keyring, write_identity


def to_peers() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def test_a_balancer_that_alternates_is_found_and_one_that_is_away_is_not_an_error(tmp_path: Path) -> None:
    contexts = []
    for name in ("one", "two"):
        directory = write_identity(tmp_path / name, agent_id("eu-de", name))
        contexts.append(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
        contexts[-1].load_cert_chain(directory / CERTIFICATE, directory / PRIVATE_KEY)
    answering = contexts[:1]
    shown: list[str] = []

    def by_turns(socket: ssl.SSLObject, name: str, context: ssl.SSLContext) -> None:
        shown.append(name)
        socket.context = answering[len(shown) % len(answering)]

    front = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    front.load_cert_chain(tmp_path / "one" / CERTIFICATE, tmp_path / "one" / PRIVATE_KEY)
    front.sni_callback = by_turns  # type: ignore[assignment]
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=front)
    address = Address("127.0.0.1", server.sockets[0].getsockname()[1], tls=True, server_name="one.agents.example")
    own = agent_keyring("eu-de", "one")
    assert await other_process_behind(address, to_peers, own) == ""
    assert set(shown) == {"one.agents.example"}
    answering += contexts[1:]
    assert await other_process_behind(address, to_peers, own) == str(agent_id("eu-de", "two"))
    server.close()
    assert await other_process_behind(address, to_peers, own) == ""
